"""Records some steps of this process: its steps, and what TensorFlow's profiler shows of them.

The profiler records the step as it is traced already. While nothing is recorded, nothing is measured.
"""

from __future__ import annotations

import dataclasses
import socket
import time
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives.clocks import clock_id, offset_to_first
from strategies.collectives.descriptions import carrying
from strategies.collectives.ledger import all_ledgers
from strategies.collectives.strings import gather_texts
from strategies.engine.engine import Engine, engine_of
from strategies.steps.explained import explained
from strategies.topology.mesh import DeviceMesh
from strategies.tracing import intervals, reading
from strategies.tracing.axes import axis_between
from strategies.tracing.events import COLLECTIVES, INPUT, STEPS, Operation, RankRecord, Slice, limited
from strategies.tracing.profile import Profile

#: The largest number of events of one rank.
MOST_SLICES = 40_000


class StepRecorder:
    """Records some steps of this process.

    Args:
        engine: the engine of the strategy; None without one: then this process is the job.
        mesh: the mesh of the strategy; None without one.
        optimizer_names: the names of the model's optimizers.
        at_most: the largest number of events.
    """

    def __init__(
        self,
        engine: Engine | None = None,
        mesh: DeviceMesh | None = None,
        optimizer_names: Sequence[str] = (),
        *,
        at_most: int = MOST_SLICES,
    ) -> None:
        self._engine, self._mesh, self._at_most = engine, mesh, at_most
        self._optimizer_names = tuple(optimizer_names)
        self._rank = 0 if engine is None else engine.member.rank
        self._profile: Profile | None = None
        self._notes: list[str] = []
        self._steps: list[Slice] = []
        self._begun: tuple[int, int, int] | None = None
        self._measured: tuple[float, float] | None = None

    def compare_clocks(self) -> None:
        """Measures the difference of this process' clock to that of rank 0. All processes call it, before `begin`.

        Without it, a trace compares clocks by the collectives that were recorded, which is less exact. Processes of one
        host have one clock.
        """
        if self._engine is None or self._engine.num_processes == 1:
            return
        group = self._engine.process_group
        with explained(self._engine.member), carrying("clocks"):
            if len(set(gather_texts(clock_id(), group))) > 1:
                self._measured = offset_to_first(group)

    def begin(self) -> None:
        """Begins to record. It runs no collective: a process may record alone."""
        self._synchronize()
        self._known = {
            entry.number: reading.Collective(
                entry.wait.key,
                entry.wait.kind,
                entry.wait.what,
                entry.wait.members,
                "" if self._mesh is None else axis_between(self._mesh, entry.wait.members),
                entry.num_bytes,
                entry.device,
                count,
            )
            for ledger in all_ledgers()
            for entry, count in ledger.starts()
        }
        self._began = time.perf_counter_ns()
        self._wall = _wall_minus_counter()
        try:
            self._profile = Profile()
        except tf.errors.OpError as error:
            self._notes.append(f"only steps were recorded, since TensorFlow's profiler did not start: {error.message}")

    def step_began(self, step: int, epoch: int) -> None:
        """Notes that a step, or an execution of several steps, begins."""
        self._begun = (step, epoch, time.perf_counter_ns())

    def step_ended(self, step: int) -> None:
        """Notes that the execution that began has ended; `step` is its last."""
        if self._begun is None:
            return
        self._synchronize()
        first, epoch, began = self._begun
        name = f"step {first}" if first == step else f"steps {first} to {step}"
        details = {"step": first, "epoch": epoch, "count": step - first + 1}
        self._steps.append(Slice(STEPS, name, began, time.perf_counter_ns(), details))
        self._begun = None

    def end(self) -> RankRecord:
        """Ends recording, and returns the record of this rank. It runs no collective."""
        self._synchronize()
        whole = (self._began, time.perf_counter_ns())
        wall = (self._wall + _wall_minus_counter()) // 2
        operations = self._operations()
        windows = [each.shifted(wall) for each in self._steps]
        runs, num_open = reading.collectives(operations, self._known)
        computing, busy = reading.computing(operations, self._optimizer_names)
        found = [*runs, *reading.collectives_in_process(operations), *reading.passes(operations, windows)]
        found += [*reading.inputs(operations), *computing]
        on_counter = [_with_idle(each, busy).shifted(-wall) for each in found]
        shares = intervals.shares(
            whole,
            [(begin - wall, end - wall) for begin, end in busy],
            [(each.begin, each.end) for each in on_counter if each.track == COLLECTIVES],
            [(each.begin, each.end) for each in on_counter if each.track == INPUT],
        )
        if num_open:
            self._notes.append(f"{num_open} collectives had not ended when recording did, and are left out.")
        slices, num_dropped = limited([*self._steps, *on_counter], self._at_most)
        measured = self._measured
        return RankRecord(
            self._rank,
            1 if self._engine is None else self._engine.num_processes,
            socket.gethostname(),
            self._devices(),
            slices,
            shares,
            clock_id(),
            wall,
            None if measured is None else (round(1e9 * measured[0]), round(1e9 * measured[1])),
            # The time of day may have been set, or slewed, meanwhile; events of the profile have it.
            clock_error=abs(wall - self._wall),
            num_dropped=num_dropped,
            notes=tuple(self._notes),
        )

    def drop(self) -> None:
        """Ends recording without a record, as when the training raises an error."""
        profile, self._profile = self._profile, None
        if profile is not None:
            profile.drop()

    def _operations(self) -> list[Operation]:
        profile, self._profile = self._profile, None
        try:
            return [] if profile is None else profile.operations()
        except (tf.errors.OpError, ValueError) as error:
            self._notes.append(f"only steps were recorded, since the profile could not be read: {error}")
            return []

    def _devices(self) -> tuple[str, ...]:
        if self._mesh is None:
            return ("GPU:0" if tf.config.list_logical_devices("GPU") else "CPU:0",)
        own = [self._mesh.devices[index] for index in self._mesh.local_indices(self._rank)]
        return tuple(name.rpartition("device:")[2] or "CPU:0" for name in own)

    def _synchronize(self) -> None:
        """Waits for what is queued on GPUs: a step's function returns before they have computed it."""
        if tf.config.list_logical_devices("GPU"):
            tf.test.experimental.sync_devices()


def recorder_of(model: Any) -> StepRecorder:
    """Returns a recorder of this process while it trains a Keras model; it records nothing yet.

    Raises:
        ValueError: a strategy of another package with several replicas, whose processes this one does not know.
    """
    strategy = model.distribute_strategy
    engine = engine_of(strategy)
    if engine is None and strategy.num_replicas_in_sync > 1:
        raise ValueError(
            "Of jobs with several replicas, only those under the strategies of this package can be recorded. Received: "
            f"{type(strategy).__module__}.{type(strategy).__name__}."
        )
    optimizers = [getattr(model, "optimizer", None)]
    while (inner := getattr(optimizers[-1], "inner_optimizer", None)) is not None:
        optimizers.append(inner)
    names = [each.name for each in optimizers if each is not None]
    return StepRecorder(engine, None if engine is None else strategy.mesh, names)


def _with_idle(each: Slice, busy: Sequence[intervals.Interval]) -> Slice:
    """Returns a collective with the time in which the rank computed nothing."""
    if not each.key:
        return each
    idle = each.end - each.begin - intervals.length(intervals.clipped(busy, (each.begin, each.end)))
    return dataclasses.replace(each, idle=idle)


def _wall_minus_counter() -> int:
    """Returns the time since the epoch minus that of ``time.perf_counter_ns()``, from the quickest of some readings."""
    found = []
    for _ in range(5):
        before, wall, after = time.perf_counter_ns(), time.time_ns(), time.perf_counter_ns()
        found.append((after - before, wall - (before + after) // 2))
    return min(found)[1]
