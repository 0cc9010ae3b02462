"""The known schedules: literal tables, and properties of all small ones."""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Mapping
from dataclasses import replace

import pytest

from strategies.schedules.messages import with_messages
from strategies.schedules.named import (
    eager_one_forward_one_backward,
    gpipe,
    interleaved,
    one_forward_one_backward,
    v_half,
    zero_bubble_h1,
    zero_bubble_v,
)
from strategies.schedules.schedule import BACKWARD_TICKS, FORWARD_TICKS, Action, Kind, Schedule
from strategies.schedules.validation import validate


def table(schedule: Schedule) -> list[str]:
    return [" ".join(map(str, actions)) for actions in schedule.devices]


def test_gpipe() -> None:
    assert table(gpipe(2, 3)) == ["0F0 0F1 0F2 0B0 0B1 0B2", "1F0 1F1 1F2 1B0 1B1 1B2"]


def test_1f1b() -> None:
    assert table(one_forward_one_backward(3, 4)) == [
        "0F0 0F1 0F2 0B0 0F3 0B1 0B2 0B3",
        "1F0 1F1 1B0 1F2 1B1 1F3 1B2 1B3",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3",
    ]


def test_eager_1f1b() -> None:
    assert table(eager_one_forward_one_backward(3, 5)) == [
        "0F0 0F1 0F2 0F3 0F4 0B0 0B1 0B2 0B3 0B4",
        "1F0 1F1 1F2 1B0 1F3 1B1 1F4 1B2 1B3 1B4",
        "2F0 2B0 2F1 2B1 2F2 2B2 2F3 2B3 2F4 2B4",
    ]


def end_with_messages(schedule: Schedule, latency: float) -> float:
    """Returns the end of the last action, if an output reaches another device after `latency`."""
    ends: dict[Action, float] = {}
    for action in schedule.order():
        forward = action.kind is Kind.FORWARD
        source = replace(action, stage=action.stage - 1 if forward else action.stage + 1)
        own = schedule.devices[schedule.device_of(action.stage)]
        place = own.index(action)
        begin = ends[own[place - 1]] if place else 0
        if source in ends:
            begin = max(begin, ends[source] + latency)
        ends[action] = begin + (FORWARD_TICKS if forward else BACKWARD_TICKS)
    return max(ends.values())


def test_eager_1f1b_waits_for_the_first_and_the_last_message_only() -> None:
    assert end_with_messages(one_forward_one_backward(2, 8), 0.5) == 3 * 9 + 8 * 0.5
    assert end_with_messages(eager_one_forward_one_backward(2, 8), 0.5) == 3 * 9 + 2 * 0.5


def test_interleaved() -> None:
    assert table(interleaved(2, 2, 2)) == [
        "0F0 0F1 2F0 2F1 2B0 2B1 0B0 0B1",
        "1F0 1F1 3F0 3B0 3F1 3B1 1B0 1B1",
    ]


def test_zero_bubble_h1() -> None:
    assert table(zero_bubble_h1(3, 4)) == [
        "0F0 0F1 0F2 0I0 0W0 0F3 0I1 0W1 0I2 0W2 0I3 0W3",
        "1F0 1F1 1I0 1F2 1I1 1W0 1F3 1I2 1W1 1I3 1W2 1W3",
        "2F0 2I0 2F1 2I1 2F2 2I2 2W0 2F3 2I3 2W1 2W2 2W3",
    ]
    assert str(zero_bubble_h1(3, 4)).splitlines()[1:] == [
        "device 0   0   1   2   .   .  (0) [0]  3  (1) [1] (2) [2] (3) [3]",
        "device 1   .   0   1   .  (0)  2  (1) [0]  3  (2) [1] (3) [2] [3]",
        "device 2   .   .   0  (0)  1  (1)  2  (2) [0]  3  (3) [1] [2] [3]",
    ]


def test_zero_bubble_v() -> None:
    assert table(zero_bubble_v(2, 3)) == [
        "1F0 2F0 1F1 2F1 2I0 1I0 2W0 2I1 1I1 1F2 2W1 2F2 1W0 1W1 2I2 1I2 2W2 1W2",
        "0F0 0F1 0F2 3F0 3I0 3W0 3F1 3I1 0I0 3W1 0I1 0W0 0W1 3F2 3I2 3W2 0I2 0W2",
    ]
    assert str(zero_bubble_v(2, 2)).splitlines()[1:] == [
        "device 0   .    a0   b0   a1   b1  (b0) (a0) (b1) (a1) [b0] [b1] [a0] [a1]",
        "device 1   a0   a1   .    b0  (b0)  b1  (b1) (a0) [b0] (a1) [b1] [a0] [a1]",
    ]


SMALL = list(itertools.product(range(1, 6), range(1, 9)))


MAKERS: dict[str, Callable[[int, int], Schedule]] = {
    "gpipe": gpipe,
    "1f1b": one_forward_one_backward,
    "eager 1f1b": eager_one_forward_one_backward,
    "interleaved, 2": lambda p, m: interleaved(p, m, 2),
    "interleaved, 3": lambda p, m: interleaved(p, m, 3),
    "zero bubble, h1": zero_bubble_h1,
    "zero bubble, v": zero_bubble_v,
    "v, half": v_half,
}


@pytest.mark.parametrize("make", MAKERS.values(), ids=MAKERS)
def test_of_all_small_ones(make: Callable[[int, int], Schedule]) -> None:
    for p, m in SMALL:
        schedule = make(p, m)
        validate(schedule)
        lowered = with_messages(schedule)
        validate(lowered)
        order = lowered.order()
        done = {action: i for i, action in enumerate(order)}
        assert len(order) == len(done) == sum(map(len, lowered.devices))
        for action in order:
            if action.kind is Kind.RECEIVE_FORWARD:
                assert done[Action(action.stage - 1, Kind.SEND_FORWARD, action.microbatch)] < done[action]
            if action.kind is Kind.RECEIVE_BACKWARD:
                assert done[Action(action.stage + 1, Kind.SEND_BACKWARD, action.microbatch)] < done[action]
        sent = [action.kind for action in order]
        assert sent.count(Kind.SEND_FORWARD) == sent.count(Kind.RECEIVE_FORWARD)
        assert sent.count(Kind.SEND_FORWARD) == sent.count(Kind.SEND_BACKWARD)
        for stage in range(schedule.num_stages):
            # Gradients are accumulated in the order of the micro-batches.
            for kind in schedule.kinds:
                ordered = [a.microbatch for a in order if a.stage == stage and a.kind is kind]
                assert ordered == list(range(m))


@pytest.mark.parametrize("make", [gpipe, one_forward_one_backward, eager_one_forward_one_backward])
def test_bubble_is_the_formula(make: Callable[[int, int], Schedule]) -> None:
    for p, m in SMALL:
        assert make(p, m).bubble() == pytest.approx((p - 1) / (m + p - 1))


def test_bubble_of_interleaved_is_smaller_by_the_stages_of_a_device() -> None:
    for p, rounds, v in itertools.product(range(1, 5), range(1, 4), range(1, 4)):
        m = p * rounds
        assert interleaved(p, m, v).bubble() == pytest.approx((p - 1) / (v * m + p - 1))


def test_zero_bubble_h1_waits_a_third_of_1f1b_at_its_memory() -> None:
    for p, m in itertools.product(range(1, 7), range(1, 15)):
        schedule, before = zero_bubble_h1(p, m), one_forward_one_backward(p, m)
        most = max(before.num_held(stage) for stage in range(p))
        assert max(schedule.num_held(stage) for stage in range(p)) == most == min(p, m)
        if m >= p:
            assert schedule.bubble() == pytest.approx((p - 1) / (3 * m + p - 1))
        assert schedule.bubble() <= before.bubble()


def most_held(schedule: Schedule) -> list[int]:
    """Returns for each device the largest number of activations of its stages that it holds at the same time."""
    found = []
    for actions in schedule.devices:
        changes = [{Kind.FORWARD: 1, schedule.kinds[-1]: -1}.get(action.kind, 0) for action in actions]
        found.append(max(itertools.accumulate(changes)))
    return found


def test_zero_bubble_v_waits_for_the_first_and_last_pass_only_at_the_memory_of_1f1b() -> None:
    for p, m in itertools.product(range(1, 9), (1, 2, 3, 5, 8, 9, 13, 16, 24)):
        schedule = zero_bubble_v(p, m)
        # A stage is half of a device's layers.
        assert max(most_held(schedule)) <= min(2 * p, 2 * m)
        length = max(end for _, end in schedule.times().values())
        assert length >= 6 * m + p - 1
        if m >= p:
            assert length <= 6 * m + p - 1 + 5
            assert schedule.bubble() <= one_forward_one_backward(p, m).bubble()
    assert max(end for _, end in zero_bubble_v(4, 16).times().values()) == 6 * 16 + 3


def test_v_half_is_faster_than_1f1b_at_half_its_memory() -> None:
    for p, m in itertools.product(range(2, 9), (16, 19, 24)):
        schedule = v_half(p, m)
        assert max(most_held(schedule)) <= p + 2
        assert schedule.bubble() < one_forward_one_backward(p, m).bubble()


def _ticks(ticks: Mapping[Kind, float], action: Action) -> float:
    return ticks[action.kind]


def test_zero_bubble_h1_never_waits_longer_than_1f1b_with_other_times() -> None:
    for p, m, forward, inputs, weights in itertools.product((2, 4), (4, 8, 16), (1, 2), (1, 2, 3), (1, 2)):
        ticks = {Kind.FORWARD: forward, Kind.BACKWARD_INPUT: inputs, Kind.BACKWARD_WEIGHT: weights}
        ticks[Kind.BACKWARD] = inputs + weights
        split, whole = (
            max(end for _, end in make(p, m).times(functools.partial(_ticks, ticks)).values())
            for make in (zero_bubble_h1, one_forward_one_backward)
        )
        assert split <= whole


@pytest.mark.parametrize("arguments", [(0, 1), (1, 0), (2, -1)])
def test_refuses_no_devices_and_no_microbatches(arguments: tuple[int, int]) -> None:
    for make in MAKERS.values():
        with pytest.raises(ValueError, match="positive number"):
            make(*arguments)
