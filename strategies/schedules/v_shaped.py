"""ZB-V and V-Half: schedules of two stages on each device, placed in the shape of a V. Pure: no TensorFlow.

Of p = 3 devices, device k holds stage 2 - k (a) and stage 3 + k (b), so that a micro-batch goes from the last device
to the first and back. Backward passes are split as in ZB-H1. Each pass of a stage, of half a device's layers, takes one
tick. With m = 4 micro-batches, ZB-V begins with

    device 0   .    .    a0   b0   a1   b1   a2   b2  (b0) (a0) (b1) (a1) ...
    device 1   .    a0   a1   a2   b0   a3   b1  (b0) [b0] (b1) (a0)  b2  ...
    device 2   a0   a1   a2   a3   .    b0  (b0)  b1  (b1) [b0] [b1] (a0) ...

Gradients of weights, in square brackets, fill the time in which a device would wait for another one. A device begins
waits for about p - 1 of these ticks altogether, in 1F1B for p - 1 forward and backward passes of twice as many layers.
All devices hold equally much: with ZB-V at most 2 p activations of half a device, as 1F1B's first device; with V-Half
at most p + 2.

The tables are made by simulation: at each tick, each device runs the most urgent pass that it can. This gives the times
of the papers' tables without their case distinctions.

Sources: Qi et al., arXiv:2401.10241 (ZB-V); Qi et al., arXiv:2405.15362 (V-Half).
"""

from __future__ import annotations

import functools
from dataclasses import dataclass, field

from strategies.schedules.schedule import Action, Kind, Schedule, prerequisites
from strategies.schedules.stage_placement import StagePlacement

#: The numbers of activations that are tried as the reserve for stages on the way back; the shortest table is taken.
RESERVES = range(4)


# A model asks for its table when it is made, and in each trace of a step.
@functools.lru_cache(maxsize=16)
def v_shaped(name: str, num_devices: int, num_microbatches: int, num_held: int) -> Schedule:
    """Returns the shortest of the simulated tables in which no device holds more than `num_held` activations of stages.

    Args:
        name: The name of the schedule.
        num_devices: The number of devices; each has two stages.
        num_microbatches: The number of micro-batches of a batch.
        num_held: The limit, at least `num_devices` + 2 (or 2, for one device).
    """
    simulations = [_Simulation(num_devices, num_microbatches, num_held, reserve) for reserve in RESERVES]
    for simulation in simulations:
        simulation.run()
    best = min((each for each in simulations if each.is_complete), key=lambda each: each.tick)
    devices = tuple(map(tuple, best.actions))
    return Schedule(name, 2 * num_devices, num_microbatches, devices, StagePlacement.VEE)


@dataclass
class _Simulation:
    """A run of the pipeline in which each pass takes one tick.

    Attributes:
        num_devices: The number of devices.
        num_microbatches: The number of micro-batches of a batch.
        num_held: The largest number of activations on a device.
        reserve: The number of activations that first stages leave free for micro-batches on their way back. Without a
            reserve, all could be held by first stages, and nothing could go on.
        actions: The actions of each device so far.
        ends: The tick after each action that has run.
        tick: The current tick; after the run, the length.
    """

    num_devices: int
    num_microbatches: int
    num_held: int
    reserve: int
    actions: list[list[Action]] = field(default_factory=list)
    ends: dict[Action, int] = field(default_factory=dict)
    counts: dict[tuple[int, Kind], int] = field(default_factory=dict)
    tick: int = 0

    @property
    def is_complete(self) -> bool:
        """True if all actions have run."""
        return len(self.ends) == 6 * self.num_devices * self.num_microbatches

    def run(self) -> None:
        """Runs ticks until all actions have run, or until no action can run any more."""
        self.actions = [[] for _ in range(self.num_devices)]
        while not self.is_complete:
            chosen = [self._most_urgent(device) for device in range(self.num_devices)]
            self.tick += 1
            for device, action in enumerate(chosen):
                if action is not None:
                    self.ends[action] = self.tick
                    self.counts[action.stage, action.kind] = action.microbatch + 1
                    self.actions[device].append(action)
            if not any(chosen):
                return

    def _most_urgent(self, device: int) -> Action | None:
        """Returns the action that a device runs next.

        Other devices wait for gradients of inputs first, then for outputs; nobody waits for gradients of weights. The
        second stage goes before the first one, because its passes free activations sooner.
        """
        first, second = self.num_devices - 1 - device, self.num_devices + device
        for kind in (Kind.BACKWARD_INPUT, Kind.FORWARD, Kind.BACKWARD_WEIGHT):
            for stage in (second, first):
                action = Action(stage, kind, self._count(stage, kind))
                may_run = kind is not Kind.FORWARD or self._has_room(stage, first, second)
                if may_run and action.microbatch < self.num_microbatches and self._is_ready(action):
                    return action
        return None

    def _count(self, stage: int, kind: Kind) -> int:
        return self.counts.get((stage, kind), 0)

    def _has_room(self, stage: int, first: int, second: int) -> bool:
        """Returns True if a device may hold the activations of one more forward pass of `stage`."""
        started = self._count(first, Kind.FORWARD), self._count(second, Kind.FORWARD)
        held = sum(started) - self._count(first, Kind.BACKWARD_WEIGHT) - self._count(second, Kind.BACKWARD_WEIGHT)
        kept_free = min(self.reserve, started[0] - started[1]) if stage == first else 0
        return held < self.num_held - kept_free

    def _is_ready(self, action: Action) -> bool:
        """Returns True if the actions that this one needs have ended."""
        needs = prerequisites(action, 2 * self.num_devices, Kind.BACKWARD_INPUT)
        return all(self.ends.get(need, self.tick + 1) <= self.tick for need in needs)
