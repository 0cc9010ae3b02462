"""Schedules as tables: the actions of each device, in order, with their times. Pure: no TensorFlow.

`named` creates the tables, `messages` adds the messages between devices, `validation` refuses invalid tables.
"""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass, field, replace
from enum import Enum

from strategies.schedules.stage_placement import StagePlacement

#: The ticks of a forward and a backward action, in pictures and bubbles: a backward pass computes twice as much. Each
#: half of a split backward pass takes one.
FORWARD_TICKS, BACKWARD_TICKS = 1, 2


class Kind(Enum):
    """The kind of an action; the value is its printed form.

    A schedule either has whole backward passes, or splits each into one that computes the gradients of the stage's
    inputs, for which the stage before waits, and one that computes the gradients of its weights.
    """

    FORWARD = "F"
    BACKWARD = "B"
    BACKWARD_INPUT = "I"
    BACKWARD_WEIGHT = "W"
    SEND_FORWARD = "SF"
    RECEIVE_FORWARD = "RF"
    SEND_BACKWARD = "SB"
    RECEIVE_BACKWARD = "RB"


#: The kinds that compute; the others are messages.
COMPUTATIONS = (Kind.FORWARD, Kind.BACKWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT)


@dataclass(frozen=True)
class Action:
    """One step of one stage with one micro-batch. Prints as ``2F0``: stage 2, forward, micro-batch 0.

    A forward send carries the stage's output, a backward send the gradient of its input. A receive has the number of
    the receiving stage.
    """

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"


@dataclass(frozen=True)
class Schedule:
    """The actions of each device, in order. Prints as a clock grid.

    Attributes:
        name: the kind of schedule.
        num_stages: the number of stages; a multiple of the number of devices.
        num_microbatches: the number of micro-batches of a batch.
        devices: the actions of each device.
        placement: the order in which stages are placed on devices.

    Example:

        layers = [keras.Input((4,)), keras.layers.Dense(8, "relu"), keras.layers.Dense(3)]
        model = keras_ext.PipelineModel(layers, num_stages=2, partition="uniform", num_microbatches=4)
        schedule = model.schedule()
        print(schedule)
        print(f"{schedule.bubble():.0%} of the time is spent waiting.")
    """

    name: str
    num_stages: int
    num_microbatches: int
    devices: tuple[tuple[Action, ...], ...] = field(repr=False)
    placement: StagePlacement = StagePlacement.LOOP

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self.devices)

    @functools.cached_property
    def kinds(self) -> tuple[Kind, ...]:
        """The kinds of computations of each stage and micro-batch, in the order in which these depend on each other."""
        found = {action.kind for actions in self.devices for action in actions}
        if found & {Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT}:
            return Kind.FORWARD, Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT
        return Kind.FORWARD, Kind.BACKWARD

    @property
    def backward(self) -> Kind:
        """The kind of the backward pass that gives the gradients of a stage's inputs."""
        return self.kinds[1]

    @property
    def splits_backward(self) -> bool:
        """True if the gradients of inputs and of weights are computed in separate passes."""
        return self.backward is Kind.BACKWARD_INPUT

    def device_of(self, stage: int) -> int:
        """Returns the device of a stage."""
        return self.placement.position_of(stage, self.num_devices)

    def runs_all_forward_first(self) -> bool:
        """Returns True if the last stage runs all its forward passes before its first backward pass, as in GPipe."""
        last = self.num_stages - 1
        kinds = [action.kind for action in self.devices[self.device_of(last)] if action.stage == last]
        forward = [kind is Kind.FORWARD for kind in kinds if kind in COMPUTATIONS]
        return forward == sorted(forward, reverse=True)

    def order(self) -> list[Action]:
        """Returns all actions in the order of their start times, each after the actions it needs.

        Raises:
            ValueError: some actions never start.
        """
        return [action for action, _ in _timed(self)]

    def times(self, ticks: Callable[[Action], float] | None = None) -> dict[Action, tuple[float, float]]:
        """Returns start and end of each action, which starts once its device is free and its prerequisites have ended.

        Args:
            ticks: returns the duration of an action; if left out, durations are `FORWARD_TICKS`, `BACKWARD_TICKS`, half
                of these for each half of a split backward pass, and 0 for messages.

        Raises:
            ValueError: some actions never start.
        """
        return dict(_timed(self, ticks))

    def bubble(self, ticks: Callable[[Action], float] | None = None) -> float:
        """Returns the share of the devices' time in which they wait."""
        times = self.times(ticks)
        busy = sum(end - start for start, end in times.values())
        return 1 - busy / (self.num_devices * max(end for _, end in times.values()))

    def num_held(self, stage: int) -> int:
        """Returns the largest number of micro-batches whose activations a stage holds at the same time."""
        held = largest = 0
        # Gradients of weights are the last that need activations.
        last_use = self.kinds[-1]
        for action in self.devices[self.device_of(stage)]:
            if action.stage == stage and action.kind in (Kind.FORWARD, last_use):
                held += 1 if action.kind is Kind.FORWARD else -1
                largest = max(largest, held)
        return largest

    def __str__(self) -> str:
        return grid(self)


def grid(schedule: Schedule) -> str:
    """Draws the table as text: devices down, ticks to the right.

    Cells have the number of the micro-batch, in parentheses for backward passes, in square brackets for those of
    weights alone, or a dot where the device waits. With several stages on a device, a letter before the number tells
    which of them computes.
    """
    computed = computations(schedule)
    times = computed.times()
    several = computed.num_stages > computed.num_devices
    end = int(max(end for _, end in times.values()))

    def label(action: Action) -> str:
        stage = "abcdefghijklmnopqrstuvwxyz"[action.stage // computed.num_devices % 26] if several else ""
        before, after = {Kind.FORWARD: ("", ""), Kind.BACKWARD_WEIGHT: ("[", "]")}.get(action.kind, ("(", ")"))
        return f"{before}{stage}{action.microbatch}{after}"

    width = max(len(label(action)) for action in times)
    lines = [f"{schedule.name}: {schedule.num_stages} stages, {schedule.num_microbatches} micro-batches"]
    for k, actions in enumerate(computed.devices):
        cells = ["."] * end
        for action in actions:
            start, stop = (int(tick) for tick in times[action])
            cells[start:stop] = [label(action)] * (stop - start)
        lines.append(f"device {k}  " + " ".join(cell.center(width) for cell in cells).rstrip())
    return "\n".join(lines)


def prerequisites(action: Action, num_stages: int, backward: Kind) -> list[Action]:
    """Returns the actions that an action needs, in addition to those before it on its device.

    Args:
        action: an action.
        num_stages: the number of stages.
        backward: the kind of the backward pass that gives the gradients of a stage's inputs.
    """
    stage, i, last = action.stage, action.microbatch, num_stages - 1
    if action.kind is Kind.FORWARD:
        return [Action(stage - 1, Kind.FORWARD, i)] if stage > 0 else []
    if action.kind in (Kind.BACKWARD, Kind.BACKWARD_INPUT):
        after = [Action(stage + 1, backward, i)] if stage < last else []
        return [Action(stage, Kind.FORWARD, i), *after]
    return {
        Kind.BACKWARD_WEIGHT: [Action(stage, Kind.BACKWARD_INPUT, i)],
        Kind.SEND_FORWARD: [Action(stage, Kind.FORWARD, i)],
        Kind.RECEIVE_FORWARD: [Action(stage - 1, Kind.SEND_FORWARD, i)],
        Kind.SEND_BACKWARD: [Action(stage, backward, i)],
        Kind.RECEIVE_BACKWARD: [Action(stage + 1, Kind.SEND_BACKWARD, i)],
    }[action.kind]


def _needs(schedule: Schedule, action: Action) -> list[Action]:
    return prerequisites(action, schedule.num_stages, schedule.backward)


def _ticks(action: Action) -> float:
    half = BACKWARD_TICKS / 2
    return {
        Kind.FORWARD: FORWARD_TICKS,
        Kind.BACKWARD: BACKWARD_TICKS,
        Kind.BACKWARD_INPUT: half,
        Kind.BACKWARD_WEIGHT: half,
    }.get(action.kind, 0)


def _timed(
    schedule: Schedule, ticks: Callable[[Action], float] | None = None
) -> list[tuple[Action, tuple[float, float]]]:
    """Returns the actions with start and end, each after the actions it needs."""
    ticks = _ticks if ticks is None else ticks
    done: dict[Action, tuple[float, float]] = {}
    following = [0] * schedule.num_devices
    free = [0.0] * schedule.num_devices
    left = sum(map(len, schedule.devices))
    while left:
        # Next is the ready action that starts first, so that devices take turns.
        ready: list[tuple[float, int]] = []
        for k, actions in enumerate(schedule.devices):
            if following[k] < len(actions):
                needs = _needs(schedule, actions[following[k]])
                if all(need in done for need in needs):
                    ready.append((max([free[k], *(done[need][1] for need in needs)]), k))
        if not ready:
            raise fault(schedule, *_stuck(schedule, following, done))
        start, k = min(ready)
        action = schedule.devices[k][following[k]]
        done[action] = (start, start + ticks(action))
        free[k] = done[action][1]
        following[k] += 1
        left -= 1
    return list(done.items())


def _stuck(schedule: Schedule, following: Sequence[int], done: Collection[Action]) -> tuple[int, int, str]:
    """Returns the device and position of the action that blocks the schedule, and a description of the fault."""
    waiting = []
    for k, actions in enumerate(schedule.devices):
        if following[k] < len(actions):
            action = actions[following[k]]
            missing = next(need for need in _needs(schedule, action) if need not in done)
            # An action that waits for its own device is certainly wrong; others may only wait because of it.
            waiting.append((schedule.device_of(missing.stage) != k, k, action, missing))
    _, k, action, missing = min(waiting, key=lambda each: each[:2])
    return k, following[k], f"{action} waits for {missing}, which never runs"


def computations(schedule: Schedule) -> Schedule:
    """Returns the same table without messages."""
    computed = tuple(tuple(action for action in actions if action.kind in COMPUTATIONS) for actions in schedule.devices)
    return replace(schedule, devices=computed)


def fault(schedule: Schedule, device: int, position: int, what: str) -> ValueError:
    """Returns an error that shows the actions of all devices, with the faulty action between arrows."""
    lines = [f"The schedule {schedule.name!r} cannot run: on device {device}, {what}."]
    for k, actions in enumerate(schedule.devices):
        shown = [str(action) for action in actions] + ([""] if k == device and position == len(actions) else [])
        if k == device:
            shown[position] = f">{shown[position]}<"
        lines.append(f"device {k}  " + " ".join(shown))
    return ValueError("\n".join(lines))
