"""Warns once per ``fit`` if training waits for its input, and says what to do about it."""

from __future__ import annotations

import logging
import time
from typing import Any

import keras

from strategies.steps.waiting import seconds_waited

_logger = logging.getLogger(__name__)


class SlowInputWarning(keras.callbacks.Callback):
    """Logs one warning per ``fit`` if training waits for batches for too large a part of its time.

    Every ``fit`` under our strategies has it on rank 0, and it measures the input of rank 0. If only another rank waits
    for its files, that rank's logs (``keras_ext.Throughput``) show it, and rank 0's show waiting for communication.
    Validation does not count, nor does the first execution, which traces the step and fills the pipeline.

    It reads the time once per execution, and the waiting time only where its clock is started or stopped. It defines no
    ``on_train_batch_end``, so Keras need not wait for the logs of every step.

    Args:
        share: the largest fraction of the time that training may wait without a warning.
        seconds: the least training time of a window.
        steps: the least number of steps of a window.
    """

    def __init__(self, *, share: float = 0.2, seconds: float = 10.0, steps: int = 20) -> None:
        super().__init__()
        self._share = share
        self._least_seconds = seconds
        self._least_steps = steps
        self._is_first_execution = True
        self._is_done = False
        # The current window: (seconds, seconds waited, steps) measured so far, and at the clock's start if it runs.
        self._measured = (0.0, 0.0, 0)
        self._begin: tuple[float, float, int] | None = None
        self._batch = 0

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Resets the measurement."""
        self._is_first_execution, self._is_done = True, False
        self._measured, self._begin = (0.0, 0.0, 0), None

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock, except in the first epoch, where the end of the first execution starts it."""
        self._batch = 0
        if not self._is_first_execution and not self._is_done:
            self._begin = self._now()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Evaluates the window measured so far, once it is long enough."""
        self._batch = batch
        if self._is_first_execution and batch > 0:
            self._is_first_execution = False
            self._begin = self._now()
        elif self._begin is not None:
            seconds = self._measured[0] + time.perf_counter() - self._begin[0]
            steps = self._measured[2] + batch - self._begin[2]
            if seconds >= self._least_seconds and steps >= self._least_steps:
                self._judge()

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stops the clock: validation begins."""
        self._stop()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops the clock, if validation has not stopped it."""
        self._is_first_execution = False
        self._stop()

    def _judge(self) -> None:
        self._stop()
        seconds, waited, _ = self._measured
        self._measured = (0.0, 0.0, 0)
        if waited <= self._share * seconds:
            self._begin = self._now()
            return
        self._is_done = True
        _logger.warning(
            "Input is the bottleneck: %.0f %% of the last %.0f s of training went into waiting for batches. Decode in "
            "parallel (dataset.map(..., num_parallel_calls=tf.data.AUTOTUNE)), end the dataset with .prefetch(2), "
            "store smaller images, or give the processes more cores.",
            100 * min(waited / seconds, 1.0),
            seconds,
        )

    def _stop(self) -> None:
        if self._begin is not None:
            passed = zip(self._measured, self._now(), self._begin, strict=True)
            seconds, waited, steps = (before + end - begin for before, end, begin in passed)
            self._measured, self._begin = (seconds, waited, int(steps)), None

    def _now(self) -> tuple[float, float, int]:
        return time.perf_counter(), seconds_waited(self.model.distribute_strategy).input, self._batch
