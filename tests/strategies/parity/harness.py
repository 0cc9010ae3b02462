"""Runs the same program on one plain-Keras device and under a strategy, and measures the difference of the results."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies import layer_api

TOLERANCE = 1e-6

# 14 rows on 4 replicas: 4, 4, 3 and 3. The last batch has 3 rows: one of 4 replicas has none.
NUM_ROWS = 45
BATCH_SIZE = 14
EPOCHS = 2

Logs = Mapping[str, Any]
Model = Any


@dataclasses.dataclass(frozen=True)
class Outcome:
    """The result of a program: weights, optimizer slots and logs."""

    weights: Sequence[np.ndarray]
    slots: Sequence[np.ndarray]
    logs: Logs


@dataclasses.dataclass(frozen=True)
class Difference:
    """The largest differences, relative where the one-device value exceeds 1."""

    weights: float
    slots: float
    logs: float

    @property
    def largest(self) -> float:
        """The largest of all."""
        return max(self.weights, self.slots, self.logs)


@dataclasses.dataclass(frozen=True)
class Case:
    """One feature.

    Attributes:
        name: its row in the parity table.
        make: builds and compiles the model; called inside the strategy's scope, if there is one.
        run: trains the model and returns logs; the default is ``fit``, ``evaluate`` and ``predict`` on arrays.
        dtype_policy: the dtype policy to make and run the model under.
        tolerance: 1e-6, except for mixed precision, where it is the rounding of the compute dtype, as stated there.
    """

    name: str
    make: Callable[[], Model]
    run: Callable[[Model, tf.distribute.Strategy | None], Logs] | None = None
    dtype_policy: str = "float32"
    tolerance: float = TOLERANCE


def features(*shape: int, seed: int = 0) -> np.ndarray:
    """Returns normal numbers of the given shape."""
    return np.random.default_rng(seed).standard_normal(shape).astype("float32")


def vectors() -> np.ndarray:
    """Returns inputs of shape (45, 6)."""
    return features(NUM_ROWS, 6)


def labels(num_classes: int = 3) -> np.ndarray:
    """Returns class numbers that depend on :func:`vectors`."""
    return (np.abs(vectors()).sum(axis=1) * 3).astype("int32") % num_classes


def targets() -> np.ndarray:
    """Returns numbers of shape (45, 1) that depend on :func:`vectors`."""
    x = vectors()
    return (x[:, :1] * x[:, 1:2] + 0.5 * x[:, 2:3]).astype("float32")


def fit_arrays(
    x: Any, y: Any, *, predict: bool = True, **kwargs: Any
) -> Callable[[Model, tf.distribute.Strategy | None], Logs]:
    """Returns a program that fits, evaluates and predicts on arrays."""

    def run(model: Model, strategy: tf.distribute.Strategy | None) -> Logs:
        settings = {"epochs": EPOCHS, "batch_size": BATCH_SIZE, "shuffle": False, "verbose": 0} | kwargs
        batch_logs: list[Logs] = []
        record = keras.callbacks.LambdaCallback(on_train_batch_end=lambda batch, logs: batch_logs.append(dict(logs)))
        history = model.fit(x, y, callbacks=[record], **settings).history
        logs: dict[str, Any] = dict(history)
        for name in batch_logs[0]:
            logs[f"batch_{name}"] = [each[name] for each in batch_logs]
        if predict:
            evaluated = model.evaluate(x, y, batch_size=BATCH_SIZE, verbose=0, return_dict=True)
            logs |= {f"test_{name}": value for name, value in evaluated.items()}
            predicted = model.predict(x, batch_size=BATCH_SIZE, verbose=0)
            logs |= {f"prediction_{i}": value for i, value in enumerate(keras.tree.flatten(predicted))}
        return logs

    return run


def execute(case: Case, strategy: tf.distribute.Strategy | None) -> Outcome:
    """Runs ``case`` under ``strategy``, or on one device if it is None."""
    keras.backend.clear_session(free_memory=False)
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(case.dtype_policy)
    try:
        keras.utils.set_random_seed(7)
        with strategy.scope() if strategy is not None else contextlib.nullcontext():
            model = case.make()
        logs = (case.run or fit_arrays(vectors(), labels()))(model, strategy)
    finally:
        keras.config.set_dtype_policy(before)
    optimizer = getattr(model, "optimizer", None)
    return Outcome(
        weights=model.get_weights(),
        slots=[] if optimizer is None else layer_api.values_of(model, layer_api.joined(optimizer.variables)),
        logs=logs,
    )


def compare(plain: Outcome, distributed: Outcome) -> Difference:
    """Returns the difference of ``distributed`` and ``plain``; asserts that their shapes and names are equal."""
    assert len(plain.weights) == len(distributed.weights)
    assert len(plain.slots) == len(distributed.slots)
    assert sorted(plain.logs) == sorted(distributed.logs)
    names = sorted(plain.logs)
    return Difference(
        weights=largest(plain.weights, distributed.weights),
        slots=largest(plain.slots, distributed.slots),
        logs=largest([plain.logs[name] for name in names], [distributed.logs[name] for name in names]),
    )


def largest(expected: Sequence[Any], received: Sequence[Any]) -> float:
    """Returns the largest difference of arrays, relative above 1; infinite if a received value is not a number."""
    largest = 0.0
    for one, other in zip(expected, received, strict=True):
        wanted, got = np.asarray(one, dtype="float64"), np.asarray(other, dtype="float64")
        assert wanted.shape == got.shape, f"expected shape {wanted.shape}, received {got.shape}"
        assert np.isfinite(wanted).all(), "the one-device run is not finite, so nothing can be compared with it"
        if wanted.size:
            error = np.abs(wanted - got) / np.maximum(1.0, np.abs(wanted))
            largest = max(largest, float(np.nan_to_num(error, nan=np.inf).max()))
    return largest
