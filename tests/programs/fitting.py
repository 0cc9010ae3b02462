"""Training with every batch's logs kept."""

from __future__ import annotations

from typing import Any

import keras

from tests.strategies.parity.harness import Logs, Model


def fit(model: Model, *args: Any, callbacks: tuple[Any, ...] = (), **kwargs: Any) -> dict[str, Any]:
    """Calls ``model.fit`` and returns its history, and the logs of every batch as ``batch_...``; shuffles if asked."""
    batch_logs: list[Logs] = []
    record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch_logs.append(dict(logs)))
    settings = {"callbacks": [*callbacks, record], "shuffle": False, "verbose": 0} | kwargs
    logs: dict[str, Any] = dict(model.fit(*args, **settings).history)
    return logs | {f"batch_{name}": [each[name] for each in batch_logs] for name in batch_logs[0]}
