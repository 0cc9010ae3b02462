"""A training that goes on until a file appears: ``training.py STRATEGY FOLDER``, run by each rank."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_ext
import strategies
from strategies import monitoring


class UntilAsked(keras.callbacks.Callback):
    """Ends the training when the file appears; answers requests of traces."""

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._folder = folder

    def on_train_begin(self, logs: Any = None) -> None:
        """Registers a recorder that only says what it was asked for."""
        reporter = monitoring.reporter()
        assert reporter is not None

        def record(request: monitoring.TraceRequest) -> None:
            reporter.deliver(request.id, f"{request.num_steps} steps of rank {strategy.rank}")

        reporter.on_trace_request = record

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops all ranks, once one of them sees the file."""
        self.model.stop_training = (self._folder / "stop").exists()


kind, folder = sys.argv[1], Path(sys.argv[2])
strategy = getattr(strategies, kind)()
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(4), keras.layers.Dense(1)])
    model.compile("adam", "mse")
x, y = np.ones((64, 8), "float32"), np.ones((64, 1), "float32")
checkpoints = keras_ext.Checkpoints(folder / "checkpoints", steps_per_epoch=4)
model.fit(x, y, batch_size=16, epochs=100_000, verbose=0, callbacks=[checkpoints, UntilAsked(folder)])
print("has trained")
