"""Simulated schedules take as long as their tables say, and longer on devices that share processors."""

from __future__ import annotations

import pytest

from strategies.planning.shared_devices import schedule_seconds
from strategies.schedules import SCHEDULES, Action, Kind, Schedule

_TICKS = {Kind.FORWARD: 1.0, Kind.BACKWARD: 2.0, Kind.BACKWARD_INPUT: 1.0, Kind.BACKWARD_WEIGHT: 1.0}


def ticks(action: Action) -> float:
    return _TICKS[action.kind]


@pytest.mark.parametrize("name", SCHEDULES)
@pytest.mark.parametrize(("devices", "microbatches"), [(1, 3), (2, 2), (3, 7), (4, 8)])
def test_alone_devices_take_the_time_of_the_table(name: str, devices: int, microbatches: int) -> None:
    table = SCHEDULES[name](devices, microbatches)
    expected = max(end for _, end in table.times(ticks).values())
    assert schedule_seconds(table, ticks) == pytest.approx(expected)


def test_devices_that_share_one_core_take_the_time_of_all_work() -> None:
    table = SCHEDULES["1f1b"](4, 8)
    assert schedule_seconds(table, ticks, slowdown=float) == pytest.approx(4 * 8 * 3)
    # Two cores are used wholly as long as two devices compute.
    two = schedule_seconds(table, ticks, slowdown=lambda running: max(1.0, running / 2))
    assert 4 * 8 * 3 / 2 < two < 4 * 8 * 3


def test_messages_delay_what_needs_them() -> None:
    # Two stages, one micro-batch: forward, message, forward, backward, message, backward.
    table = SCHEDULES["1f1b"](2, 1)
    assert schedule_seconds(table, ticks, message_seconds=0.5) == pytest.approx(1 + 0.5 + 1 + 2 + 0.5 + 2)


def test_a_table_that_cannot_run_is_refused() -> None:
    backward_first = Schedule("wrong", 1, 1, ((Action(0, Kind.BACKWARD, 0), Action(0, Kind.FORWARD, 0)),))
    with pytest.raises(ValueError, match=r"'wrong' cannot run: after 0 actions all devices wait"):
        schedule_seconds(backward_first, ticks)
