"""Schedules that do not compute a pipeline are rejected, and the error marks the mistake."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

import pytest

from strategies.schedules.messages import with_messages
from strategies.schedules.named import gpipe, one_forward_one_backward, zero_bubble_h1
from strategies.schedules.schedule import Action, Kind, Schedule
from strategies.schedules.validation import validate


def changed(schedule: Schedule, device: int, actions: list[Action]) -> Schedule:
    devices = list(schedule.devices)
    devices[device] = tuple(actions)
    return dataclasses.replace(schedule, devices=tuple(devices))


FAULTS: dict[str, tuple[Callable[[list[Action]], list[Action]], str]] = {
    "waits for": (lambda actions: [actions[1], actions[0], *actions[2:]], r">1B0<"),
    "1B2 is missing": (lambda actions: actions[:-1], r"1F2 ><"),
    "occurs twice": (lambda actions: [*actions, actions[0]], r">1F0<"),
    "belongs on device 0": (lambda actions: [Action(0, Kind.FORWARD, 0), *actions], r">0F0<"),
    "names a stage or micro-batch that does not exist": (
        lambda actions: [*actions, Action(1, Kind.FORWARD, 3)],
        r">1F3<",
    ),
}


@pytest.mark.parametrize("what", FAULTS)
def test_a_fault_is_marked(what: str) -> None:
    change, mark = FAULTS[what]
    schedule = one_forward_one_backward(2, 3)
    with pytest.raises(ValueError, match=f"(?s){what}.*{mark}"):
        validate(changed(schedule, 1, change(list(schedule.devices[1]))))


SPLIT_FAULTS: dict[str, tuple[Callable[[list[Action]], list[Action]], str]] = {
    "1W1 waits for 1I1, which never runs": (lambda actions: [*actions[:2], actions[5], *actions[2:5]], r">1W1<"),
    "1W1 is missing": (lambda actions: actions[:-1], r"1W0 ><"),
    "1B1 is a whole backward pass, but others are split": (
        lambda actions: [Action(1, Kind.BACKWARD, 1) if a.kind is Kind.BACKWARD_INPUT else a for a in actions],
        r">1B1<",
    ),
}


@pytest.mark.parametrize("what", SPLIT_FAULTS)
def test_a_fault_in_a_split_backward_pass(what: str) -> None:
    change, mark = SPLIT_FAULTS[what]
    schedule = zero_bubble_h1(2, 2)
    assert [str(action) for action in schedule.devices[1]] == ["1F0", "1I0", "1F1", "1I1", "1W0", "1W1"]
    with pytest.raises(ValueError, match=f"(?s){what}.*{mark}"):
        validate(changed(schedule, 1, change(list(schedule.devices[1]))))


def test_a_message_that_is_missing() -> None:
    lowered = with_messages(gpipe(2, 1))
    with pytest.raises(ValueError, match="0SF0"):
        validate(changed(lowered, 0, [action for action in lowered.devices[0] if action.kind is not Kind.SEND_FORWARD]))


def test_two_devices_that_wait_for_each_other() -> None:
    first, second = gpipe(2, 1).devices
    crossed = dataclasses.replace(gpipe(2, 1), devices=((first[1], first[0]), second))
    with pytest.raises(ValueError, match="waits for"):
        crossed.order()
