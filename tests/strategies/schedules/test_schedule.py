"""Schedules: their printed form, their contents, and their times."""

from __future__ import annotations

import itertools

from strategies.schedules.named import gpipe, interleaved, one_forward_one_backward


def test_prints() -> None:
    assert str(one_forward_one_backward(2, 3)).splitlines() == [
        "1f1b: 2 stages, 3 micro-batches",
        "device 0   0   1   .   .  (0) (0)  2  (1) (1)  .  (2) (2)",
        "device 1   .   0  (0) (0)  1  (1) (1)  2  (2) (2)  .   .",
    ]
    assert str(interleaved(2, 2, 2)).splitlines()[1].startswith("device 0   a0   a1   b0   b1   .    .   (b0) (b0)")


def test_ticks_that_were_measured() -> None:
    schedule = gpipe(2, 2)
    slow = schedule.bubble(lambda action: 5.0 if action.stage == 1 else 1.0)
    assert slow > schedule.bubble()


def test_what_is_held() -> None:
    for p, m in itertools.product(range(1, 6), range(1, 9)):
        assert [gpipe(p, m).num_held(k) for k in range(p)] == [m] * p
        assert [one_forward_one_backward(p, m).num_held(k) for k in range(p)] == [min(m, p - k) for k in range(p)]
