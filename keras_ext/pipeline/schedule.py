"""In which order each device computes the stages of a pipeline, as tables of actions. Pure: no TensorFlow.

With p = 3 devices and m = 4 micro-batches, GPipe

    device 0  0 1 2 3 . . . . 0 0 1 1 2 2 3 3
    device 1  . 0 1 2 3 . . 0 0 1 1 2 2 3 3 .        forward: one tick, backward: two

fills and drains once, and holds the activations of all micro-batches. 1F1B alternates as soon as it can, and holds
those of p at most. Both idle for (p - 1) / (m + p - 1) of the time. With v stages on each device, interleaved, idle
time is v times smaller, for v times the messages.

Sources: Huang et al., arXiv:1811.06965 (GPipe); Narayanan et al., arXiv:1806.03377 and arXiv:2104.04473 (1F1B,
interleaved).
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from enum import Enum

#: Ticks that a forward and a backward action take, in pictures and bubbles: a backward pass computes twice as much.
FORWARD_TICKS, BACKWARD_TICKS = 1, 2


class Kind(Enum):
    """The kind of an action; the value is its printed form."""

    FORWARD = "F"
    BACKWARD = "B"
    SEND_FORWARD = "SF"
    RECEIVE_FORWARD = "RF"
    SEND_BACKWARD = "SB"
    RECEIVE_BACKWARD = "RB"


@dataclass(frozen=True)
class Action:
    """One step of one stage with one micro-batch. Prints as ``2F0``: stage 2, forward, micro-batch 0.

    What is sent forward is the stage's output, what is sent backward the gradient of its input; a stage receives what
    its neighbour sends.
    """

    stage: int
    kind: Kind
    microbatch: int

    def __str__(self) -> str:
        return f"{self.stage}{self.kind.value}{self.microbatch}"


@dataclass(frozen=True)
class Schedule:
    """The actions of each device, in its order. Prints as a clock grid.

    Stage k lies on device ``k % num_devices``.

    Attributes:
        name: of the kind of schedule.
        num_stages: of the model; a multiple of the number of devices.
        num_microbatches: of a batch.
        devices: the actions of each device.
    """

    name: str
    num_stages: int
    num_microbatches: int
    devices: tuple[tuple[Action, ...], ...] = field(repr=False)

    @property
    def num_devices(self) -> int:
        """The number of devices."""
        return len(self.devices)

    def device_of(self, stage: int) -> int:
        """The device on which a stage lies."""
        return stage % self.num_devices

    def order(self) -> list[Action]:
        """All actions, each after those it needs, devices taking turns: an order in which one can emit them.

        Raises:
            ValueError: there is none.
        """
        return [action for action, _ in _timed(self)]

    def times(self, ticks: Callable[[Action], float] | None = None) -> dict[Action, tuple[float, float]]:
        """Returns start and end of each action, which starts as soon as its device and the actions it needs are ready.

        Args:
            ticks: duration of an action; `FORWARD_TICKS` or `BACKWARD_TICKS` if left out, 0 for messages.

        Raises:
            ValueError: some actions never start.
        """
        return dict(_timed(self, ticks))

    def bubble(self, ticks: Callable[[Action], float] | None = None) -> float:
        """The share of the devices' time in which they wait."""
        times = self.times(ticks)
        busy = sum(end - start for start, end in times.values())
        return 1 - busy / (self.num_devices * max(end for _, end in times.values()))

    def num_held(self, stage: int) -> int:
        """The largest number of micro-batches whose activations a stage holds at a time."""
        held = largest = 0
        for action in self.devices[self.device_of(stage)]:
            if action.stage == stage and action.kind in (Kind.FORWARD, Kind.BACKWARD):
                held += 1 if action.kind is Kind.FORWARD else -1
                largest = max(largest, held)
        return largest

    def __str__(self) -> str:
        return grid(self)


def gpipe(num_devices: int, num_microbatches: int) -> Schedule:
    """All micro-batches forward, then all backward (arXiv:1811.06965)."""
    _check(num_devices=num_devices, num_microbatches=num_microbatches)
    devices = [
        tuple(Action(k, kind, i) for kind in (Kind.FORWARD, Kind.BACKWARD) for i in range(num_microbatches))
        for k in range(num_devices)
    ]
    return Schedule("gpipe", num_devices, num_microbatches, tuple(devices))


def one_forward_one_backward(num_devices: int, num_microbatches: int) -> Schedule:
    """Each device goes backward as soon as a gradient comes, so that it holds few activations (arXiv:1806.03377)."""
    _check(num_devices=num_devices, num_microbatches=num_microbatches)
    devices = []
    for k in range(num_devices):
        forward = [Action(k, Kind.FORWARD, i) for i in range(num_microbatches)]
        backward = [Action(k, Kind.BACKWARD, i) for i in range(num_microbatches)]
        devices.append(_alternating(forward, backward, num_devices - 1 - k))
    return Schedule("1f1b", num_devices, num_microbatches, tuple(devices))


def interleaved(num_devices: int, num_microbatches: int, stages_per_device: int = 2) -> Schedule:
    """1F1B with several stages on each device, k, k + p, k + 2 p and so on (arXiv:2104.04473, section 2.2).

    A device takes its stages in turn, for as many micro-batches as there are devices, or, where they do not divide, a
    few more.
    """
    _check(num_devices=num_devices, num_microbatches=num_microbatches, stages_per_device=stages_per_device)
    num_turns = max(1, num_microbatches // num_devices)
    # Never fewer, unless there are no more: a stage would wait for what its own device has not begun.
    bounds = [-(-num_microbatches * i // num_turns) for i in range(num_turns + 1)]
    turns = [range(start, end) for start, end in itertools.pairwise(bounds)]
    devices = []
    for k in range(num_devices):
        stages = [k + number * num_devices for number in range(stages_per_device)]
        forward = [Action(s, Kind.FORWARD, i) for turn in turns for s in stages for i in turn]
        backward = [Action(s, Kind.BACKWARD, i) for turn in turns for s in reversed(stages) for i in turn]
        num_first = 2 * (num_devices - 1 - k) + (stages_per_device - 1) * max(map(len, turns))
        devices.append(_alternating(forward, backward, num_first))
    return Schedule("interleaved_1f1b", num_devices * stages_per_device, num_microbatches, tuple(devices))


#: By the names that models take.
SCHEDULES: Mapping[str, Callable[..., Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "interleaved_1f1b": interleaved,
}


def with_messages(schedule: Schedule) -> Schedule:
    """Returns a table of computations with what is sent and received between devices.

    A device sends at once what it has made for another one, and receives just before it needs it. Neighbours on one
    device need no message.
    """
    devices = []
    for k, actions in enumerate(schedule.devices):
        lowered: list[Action] = []
        for action in actions:
            forward = action.kind is Kind.FORWARD
            step = 1 if forward else -1
            source, target = action.stage - step, action.stage + step
            if 0 <= source < schedule.num_stages and schedule.device_of(source) != k:
                kind = Kind.RECEIVE_FORWARD if forward else Kind.RECEIVE_BACKWARD
                lowered.append(Action(action.stage, kind, action.microbatch))
            lowered.append(action)
            if 0 <= target < schedule.num_stages and schedule.device_of(target) != k:
                kind = Kind.SEND_FORWARD if forward else Kind.SEND_BACKWARD
                lowered.append(Action(action.stage, kind, action.microbatch))
        devices.append(tuple(lowered))
    return Schedule(schedule.name, schedule.num_stages, schedule.num_microbatches, tuple(devices))


def validate(schedule: Schedule) -> None:
    """Refuses a table that does not compute a pipeline.

    Raises:
        ValueError: an action on another device than its stage's, one that is missing or there twice, or one that waits
            for ever. The message is the grid, with the fault marked.
    """
    seen: dict[Action, int] = {}
    for k, actions in enumerate(schedule.devices):
        for position, action in enumerate(actions):
            if not (0 <= action.stage < schedule.num_stages and 0 <= action.microbatch < schedule.num_microbatches):
                raise _fault(schedule, k, position, f"there is no stage or micro-batch such as those of {action}")
            if schedule.device_of(action.stage) != k:
                raise _fault(schedule, k, position, f"{action} belongs on device {schedule.device_of(action.stage)}")
            if action in seen:
                raise _fault(schedule, k, position, f"{action} is there twice")
            seen[action] = position
    for stage in range(schedule.num_stages):
        for kind in (Kind.FORWARD, Kind.BACKWARD):
            for microbatch in range(schedule.num_microbatches):
                action = Action(stage, kind, microbatch)
                if action not in seen:
                    k = schedule.device_of(stage)
                    raise _fault(schedule, k, len(schedule.devices[k]), f"{action} is missing")
    with_its_messages = any(action.kind not in (Kind.FORWARD, Kind.BACKWARD) for action in seen)
    if with_its_messages:
        for k, actions in enumerate(with_messages(_computations(schedule)).devices):
            missing = [action for action in actions if action not in seen]
            if missing:
                raise _fault(schedule, k, len(schedule.devices[k]), f"{missing[0]} is missing")
    _timed(schedule)


def grid(schedule: Schedule) -> str:
    """Draws the table: devices down, ticks to the right, micro-batches where they are computed, dots where it waits.

    Backward passes are in brackets. With several stages on a device, a letter before the micro-batch says which.
    """
    computed = _computations(schedule)
    times = computed.times()
    several = computed.num_stages > computed.num_devices
    end = int(max(end for _, end in times.values()))

    def label(action: Action) -> str:
        stage = "abcdefghijklmnopqrstuvwxyz"[action.stage // computed.num_devices % 26] if several else ""
        return f"({stage}{action.microbatch})" if action.kind is Kind.BACKWARD else f"{stage}{action.microbatch}"

    width = max(len(label(action)) for action in times)
    lines = [f"{schedule.name}: {schedule.num_stages} stages, {schedule.num_microbatches} micro-batches"]
    for k, actions in enumerate(computed.devices):
        cells = ["."] * end
        for action in actions:
            start, stop = (int(tick) for tick in times[action])
            cells[start:stop] = [label(action)] * (stop - start)
        lines.append(f"device {k}  " + " ".join(cell.center(width) for cell in cells).rstrip())
    return "\n".join(lines)


def _alternating(forward: Sequence[Action], backward: Sequence[Action], num_first: int) -> tuple[Action, ...]:
    """`num_first` actions forward, then one forward and one backward in turn, then what is left backward."""
    num_first = min(num_first, len(forward))
    actions = list(forward[:num_first])
    for i, action in enumerate(forward[num_first:]):
        actions += [action, backward[i]]
    return tuple(actions + list(backward[len(forward) - num_first :]))


def _needs(schedule: Schedule, action: Action) -> list[Action]:
    """Returns the actions that an action needs, beside those before it on its device."""
    stage, i, last = action.stage, action.microbatch, schedule.num_stages - 1
    if action.kind is Kind.FORWARD:
        return [Action(stage - 1, Kind.FORWARD, i)] if stage > 0 else []
    if action.kind is Kind.BACKWARD:
        after = [Action(stage + 1, Kind.BACKWARD, i)] if stage < last else []
        return [Action(stage, Kind.FORWARD, i), *after]
    return {
        Kind.SEND_FORWARD: [Action(stage, Kind.FORWARD, i)],
        Kind.RECEIVE_FORWARD: [Action(stage - 1, Kind.SEND_FORWARD, i)],
        Kind.SEND_BACKWARD: [Action(stage, Kind.BACKWARD, i)],
        Kind.RECEIVE_BACKWARD: [Action(stage + 1, Kind.SEND_BACKWARD, i)],
    }[action.kind]


def _ticks(action: Action) -> float:
    return {Kind.FORWARD: FORWARD_TICKS, Kind.BACKWARD: BACKWARD_TICKS}.get(action.kind, 0)


def _timed(
    schedule: Schedule, ticks: Callable[[Action], float] | None = None
) -> list[tuple[Action, tuple[float, float]]]:
    """Actions with start and end, in an order in which each comes after those it needs."""
    ticks = _ticks if ticks is None else ticks
    done: dict[Action, tuple[float, float]] = {}
    following = [0] * schedule.num_devices
    free = [0.0] * schedule.num_devices
    left = sum(map(len, schedule.devices))
    while left:
        # Of the actions that can be next, the one that starts first: devices take turns.
        ready: list[tuple[float, int]] = []
        for k, actions in enumerate(schedule.devices):
            if following[k] < len(actions):
                needs = _needs(schedule, actions[following[k]])
                if all(need in done for need in needs):
                    ready.append((max([free[k], *(done[need][1] for need in needs)]), k))
        if not ready:
            raise _fault(schedule, *_stuck(schedule, following, done))
        start, k = min(ready)
        action = schedule.devices[k][following[k]]
        done[action] = (start, start + ticks(action))
        free[k] = done[action][1]
        following[k] += 1
        left -= 1
    return list(done.items())


def _stuck(schedule: Schedule, following: Sequence[int], done: Collection[Action]) -> tuple[int, int, str]:
    """Device, position and what is wrong of the action that is to blame."""
    waiting = []
    for k, actions in enumerate(schedule.devices):
        if following[k] < len(actions):
            action = actions[following[k]]
            missing = next(need for need in _needs(schedule, action) if need not in done)
            # An action that waits for its own device is wrong in any case; others may wait because of it.
            waiting.append((schedule.device_of(missing.stage) != k, k, action, missing))
    _, k, action, missing = min(waiting, key=lambda each: each[:2])
    return k, following[k], f"{action} waits for {missing}, which never comes"


def _computations(schedule: Schedule) -> Schedule:
    """The same table without messages."""
    computed = tuple(
        tuple(action for action in actions if action.kind in (Kind.FORWARD, Kind.BACKWARD))
        for actions in schedule.devices
    )
    return Schedule(schedule.name, schedule.num_stages, schedule.num_microbatches, computed)


def _fault(schedule: Schedule, device: int, position: int, what: str) -> ValueError:
    """An error that shows the actions of all devices, the one at fault between arrows."""
    lines = [f"The schedule {schedule.name!r} cannot run: on device {device}, {what}."]
    for k, actions in enumerate(schedule.devices):
        shown = [str(action) for action in actions] + ([""] if k == device and position == len(actions) else [])
        if k == device:
            shown[position] = f">{shown[position]}<"
        lines.append(f"device {k}  " + " ".join(shown))
    return ValueError("\n".join(lines))


def _check(**numbers: int) -> None:
    for name, number in numbers.items():
        if not isinstance(number, int) or number < 1:
            raise ValueError(f"{name} must be a positive number. Received: {name}={number!r}.")
