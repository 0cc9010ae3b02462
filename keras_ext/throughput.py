"""The speed of training and the share of time in which it waits, in the progress bar and in the logs."""

from __future__ import annotations

import math
import threading
import time
from dataclasses import dataclass
from typing import Any

import keras

import strategies
from strategies import layer_api

# Reading the waiting times takes up to 0.1 ms, and nobody reads a progress bar more often than this.
_SECONDS_BETWEEN_READS = 0.5


@dataclass(frozen=True)
class _Moment:
    """The time, and the total times waited until then, in seconds; None for a time that is not measured."""

    time: float
    input: float | None = None
    communication: float | None = None


@dataclass(frozen=True)
class _Stretch:
    """The steps and times between two moments, or the sums of several such stretches."""

    steps: int = 0
    seconds: float = 0.0
    input: float | None = None
    communication: float | None = None

    @staticmethod
    def between(begin: _Moment, end: _Moment, steps: int) -> _Stretch:
        return _Stretch(
            steps,
            end.time - begin.time,
            _combined(end.input, begin.input, -1),
            _combined(end.communication, begin.communication, -1),
        )

    def __add__(self, other: _Stretch) -> _Stretch:
        return _Stretch(
            self.steps + other.steps,
            self.seconds + other.seconds,
            _combined(other.input, self.input),
            _combined(other.communication, self.communication),
        )

    def share_of(self, waited: float | None) -> float | None:
        if waited is None:
            return None
        return min(max(waited / self.seconds, 0.0), 1.0) if self.seconds > 0 else math.nan


def _combined(value: float | None, other: float | None, sign: int = 1) -> float | None:
    return None if value is None else value + sign * (other or 0.0)


class Throughput(keras.callbacks.Callback):
    """Measures the units, such as images, that training processes per second, and the share of time it waits.

    Batch logs, and with them the progress bar, get running values of the epoch, updated twice a second; epoch logs, and
    with them ``History``, ``CSVLogger`` and ``TensorBoard``, get the values of the whole epoch:

    - ``images_per_second`` (the name depends on `unit`): the total of all replicas.
    - ``waiting_input``: the share of time, from 0 to 1, in which this process waited for its next batch.
    - ``waiting_communication``: the share in which this process waited for reductions of gradients over replicas that
      its backward pass did not hide, including waits for slower replicas.

    Only training counts. Validation does not count, nor does the first execution in each call of ``fit``, which traces
    the step and fills the pipeline. The values of an epoch without another execution are NaN. The shares exist under
    the strategies of this package only; that of communication also needs this callback in ``fit`` (or a call of
    ``strategies.measure_communication``) before the first run of the step traces it. Put the callback before others
    that write logs. The values differ between processes: no callback should base decisions on them.

    Args:
        units_per_step: the number of units in a global batch; the mean if batches differ.
        unit: the name of the units, in the plural, for the name of the log.

    Example:

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        throughput = keras_ext.Throughput(units_per_step=2, unit="rows")
        history = model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=2, callbacks=[throughput])
        print(history.history["rows_per_second"])

    Raises:
        ValueError: an argument out of range.
    """

    #: Keras may call ``on_train_batch_end`` from other threads, so that training does not wait for logs.
    async_safe = True

    def __init__(self, units_per_step: float, unit: str = "images") -> None:
        super().__init__()
        if not units_per_step > 0:
            raise ValueError(f"units_per_step must be above 0. Received: units_per_step={units_per_step!r}.")
        if not unit.isidentifier():
            raise ValueError(f"unit must be one word, such as 'images' or 'tokens'. Received: unit={unit!r}.")
        self._units_per_step = float(units_per_step)
        self._unit = unit
        self._name = f"{unit}_per_second"
        self._all = _Stretch()
        self._is_first_execution = True
        # The start of the measured stretch of this epoch, and the number of steps of the epoch before it; its end,
        # once validation has begun.
        self._begin: _Moment | None = None
        self._num_skipped = 0
        self._end: _Moment | None = None
        self._num_ended = 0
        self._lock = threading.Lock()
        self._running: dict[str, float] = {}
        self._next_read = 0.0
        self._measures = False

    @property
    def units_per_second(self) -> float:
        """The units per second of training so far; 0 if too little has run to measure it."""
        return self._rate_of(self._all)

    @property
    def input_share(self) -> float | None:
        """The share of time in which this process waited for batches; None if not measured, NaN if not known yet."""
        return self._all.share_of(self._all.input)

    @property
    def communication_share(self) -> float | None:
        """The share in which it waited for reductions over replicas; None if not measured, NaN if not known yet."""
        return self._all.share_of(self._all.communication)

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Makes the step measure how long it waits, if it is not traced yet."""
        try:
            strategies.measure_communication(self.model.distribute_strategy)
            self._measures = True
        except (AttributeError, ValueError):  # plain Keras, another backend or another's strategy
            self._measures = False
        self._is_first_execution = True
        layer_api.note_units(self._units_per_step, self._unit)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock; in the first epoch the clock starts later, at the end of the first execution."""
        self._begin = None if self._is_first_execution else self._now()
        self._end = None
        self._num_skipped = self._num_ended = 0
        self._running = {}
        self._next_read = time.perf_counter() + _SECONDS_BETWEEN_READS

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts the clock of the first epoch; updates the running values from time to time."""
        if self._is_first_execution:
            # The first call comes before that execution, the second one after it.
            if batch > 0:
                self._is_first_execution = False
                self._begin, self._num_skipped = self._now(), batch
        elif self._begin is not None and time.perf_counter() >= self._next_read:
            now = self._now()
            self._running = self._values(_Stretch.between(self._begin, now, batch - self._num_skipped))
            self._next_read = now.time + _SECONDS_BETWEEN_READS

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs the running values."""
        with self._lock:
            self._num_ended = max(self._num_ended, batch + 1)
        if logs is not None:
            logs.update(self._running)

    def on_test_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Stops the clock: validation begins."""
        self._end = self._end or self._now()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Stops the clock where there is no validation, and logs the values of the epoch."""
        self._is_first_execution = False
        end = self._end or self._now()
        # Only now has on_train_batch_end been called for all batches. The last execution may have had fewer steps.
        num_steps = layer_api.finished_steps(self.params, self._num_ended - 1) - self._num_skipped
        begin = end if self._begin is None or num_steps <= 0 else self._begin
        of_epoch = _Stretch.between(begin, end, num_steps if begin is not end else 0)
        self._all += of_epoch
        if logs is not None:
            logs.update(self._values(of_epoch))

    def _values(self, stretch: _Stretch) -> dict[str, float]:
        rate = self._rate_of(stretch) if stretch.seconds > 0 else math.nan
        shares = {
            "waiting_input": stretch.share_of(stretch.input),
            "waiting_communication": stretch.share_of(stretch.communication),
        }
        return {self._name: rate} | {name: share for name, share in shares.items() if share is not None}

    def _rate_of(self, stretch: _Stretch) -> float:
        return stretch.steps * self._units_per_step / stretch.seconds if stretch.seconds > 0 else 0.0

    def _now(self) -> _Moment:
        if not self._measures:
            return _Moment(time.perf_counter())
        waited = strategies.seconds_waited(self.model.distribute_strategy)
        return _Moment(time.perf_counter(), waited.input, waited.communication)
