"""Trains on two ranks, rank 1 slowly, until a file exists: run by `test_requested_traces`, never collected."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import strategies
from strategies.testing import faults

END = Path(sys.argv[1])


class EndOnFile(keras.callbacks.Callback):
    """Stops the training once the file exists."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops."""
        self.model.stop_training = END.exists()


strategy = strategies.MultiWorkerMirroredStrategy()
keras.utils.set_random_seed(0)
with strategy.scope():
    model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(16, "relu"), keras.layers.Dense(2)])
    model.compile("adam", "mse")
late = faults.Injector(faults.fail_at(step=0, kind="slow", seconds=0.05, rank=1))
x = np.ones((800, 8), "float32")
model.fit(x, x[:, :2], batch_size=8, epochs=10**6, verbose=0, callbacks=[late, EndOnFile()])
