"""The Keras callback that injects faults into a training run."""

from __future__ import annotations

import threading
import time
from typing import Any

import keras

from strategies.testing.faults.plan import Fault, Faults, Moment
from strategies.testing.faults.record import Pending
from strategies.testing.faults.striking import strike, unlimit_files
from strategies.testing.faults.writes import watch_writes
from strategies.topology.cluster import Cluster

# By then Keras is tracing, which takes a second or more for any model.
_SECONDS_INTO_TRACING = 0.1


class Injector(keras.callbacks.Callback):
    """Injects the given faults into this process, or those in the environment variable ``STRATEGIES_FAULTS``.

    With this callback, faults can be injected into a program from outside, without changing it; without the variable,
    it does nothing. Put it first, before callbacks that save.

    Args:
        faults: the faults; None for those in the environment variable.
        rank: the rank of this process; None for the rank that its launcher set.

    Example:

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        injector = faults.Injector(faults.fail_at(step=3, kind="slow", seconds=0.01))
        model.fit(np.ones((8, 3)), np.ones((8, 1)), batch_size=2, callbacks=[injector], verbose=0)

    Raises:
        ValueError: the environment variable does not describe faults.
    """

    def __init__(self, faults: Faults | None = None, rank: int | None = None) -> None:
        super().__init__()
        self._rank = Cluster.from_environment().rank if rank is None else rank
        self._faults = Faults.from_environment() if faults is None else faults
        self._pending = Pending(self._faults, self._rank)
        self._first_step = 0
        # One past the last step that has begun: faults at "save" of earlier steps are due.
        self._end = 0
        self._has_stepped = False
        self._num_writes: dict[int, int] = {}
        self._is_limited = False
        if any(fault.at == "save" for fault in self._faults.faults):
            watch_writes(self._on_write, "checkpoint")

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Injects the faults at "start"."""
        self._count_from_optimizer()
        self._strike("start", self._first_step + 1)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Takes the number of the first step from the optimizer, which counts the steps before a checkpoint, too."""
        self._unlimit()
        self._count_from_optimizer()

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Injects the faults at "tracing" and "step": in a thread while the step runs, or before the step."""
        self._unlimit()
        self._end = self._first_step + batch + self.model.steps_per_execution
        if not self._has_stepped:
            self._has_stepped = True
            self._strike("tracing", self._end)
        self._strike("step", self._end)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Removes the limit on file sizes that a fault at "save" has set."""
        self._unlimit()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Injects the faults at "epoch_end"."""
        self._strike("epoch_end", self._end)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Removes the limit on file sizes that a fault at "save" has set."""
        self._unlimit()

    def _count_from_optimizer(self) -> None:
        optimizer = self.model.optimizer
        if optimizer is not None:
            updates = int(keras.ops.convert_to_numpy(optimizer.iterations))
            self._first_step = updates * (getattr(optimizer, "gradient_accumulation_steps", None) or 1)

    def _strike(self, at: Moment, end: int) -> None:
        for index, fault in self._pending.due(at, end):
            if fault.in_the_midst:
                self._begin_later(index, fault)
            elif fault.kind == "slow" or self._pending.take(index):
                strike(fault, self._rank)

    def _begin_later(self, index: int, fault: Fault) -> None:
        default = _SECONDS_INTO_TRACING if fault.at == "tracing" else 0.0
        seconds = default if fault.seconds is None or fault.kind == "stop" else fault.seconds

        def strike_later() -> None:
            time.sleep(seconds)
            if self._pending.take(index):
                strike(fault, self._rank)

        threading.Thread(target=strike_later, name="strategies-fault", daemon=True).start()

    def _on_write(self, path: str) -> None:
        if self._pending.is_record(path):
            return
        for index, fault in self._pending.due("save", self._end):
            self._num_writes[index] = self._num_writes.get(index, 0) + 1
            if self._num_writes[index] < fault.write or not self._pending.take(index):
                continue
            self._is_limited = self._is_limited or fault.byte is not None
            strike(fault, self._rank, f": {path}")

    def _unlimit(self) -> None:
        if self._is_limited:
            unlimit_files()
            self._is_limited = False
