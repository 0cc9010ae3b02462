"""One contender in its processes: one long training, which reports milliseconds of a step."""

from __future__ import annotations

import time
from typing import Any

import keras
import numpy as np
from harness.workers import Report

import strategies

_FEATURES, _ROWS = 256, 64


class _Steps(keras.callbacks.Callback):
    """Reports the mean time of a number of steps, repeatedly."""

    def __init__(self, num_steps: int, report: Report) -> None:
        super().__init__()
        self._num_steps, self._report = num_steps, report
        self._begin = 0.0

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        """Starts the clock."""
        if batch % self._num_steps == 0:
            self._begin = time.perf_counter()

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Stops the clock, and waits for the next turn."""
        if (batch + 1) % self._num_steps == 0:
            self._report(1000 * (time.perf_counter() - self._begin) / self._num_steps)


def train(num_steps: int, report: Report) -> None:
    """Trains a small model, whose steps are short, so that what is done beside them counts for much."""
    with strategies.MultiWorkerMirroredStrategy().scope():
        layers = [keras.layers.Dense(_FEATURES, "relu") for _ in range(4)]
        model = keras.Sequential([keras.Input((_FEATURES,)), *layers, keras.layers.Dense(1)])
        model.compile("adam", "mse")
    batch = np.ones((_ROWS, _FEATURES), "float32"), np.ones((_ROWS, 1), "float32")

    def batches() -> Any:
        while True:
            yield batch

    model.fit(batches(), epochs=1, steps_per_epoch=1_000_000_000, verbose=0, callbacks=[_Steps(num_steps, report)])
