"""The rank that holds the others up, as a table."""

from __future__ import annotations

import pytest

from strategies.control_plane.stragglers import WaitingShares, slow_ranks_now, stragglers


@pytest.mark.parametrize(
    ("looks", "expected"),
    [
        ([(100, 60), (100, 58), (100, 2), (100, 61)], "the others wait for rank 2 (2%): they spend up to 61%"),
        ([(100, 1), (100, 70)], "the others wait for rank 0 (1%)"),
        # Alike; a small difference; too few samples; half of the ranks: then the cause is how the work is divided.
        ([(100, 40), (100, 45)], None),
        ([(100, 2), (100, 20)], None),
        ([(10, 0), (10, 9)], None),
        ([(100, 0), (100, 0), (100, 60), (100, 0)], None),
        ([(100, 50)], None),
    ],
)
def test_who_is_named(looks: list[tuple[int, int]], expected: str | None) -> None:
    found = stragglers(looks)
    assert found is None if expected is None else str(found).startswith(expected)


def test_looks_are_counted_once() -> None:
    shares = WaitingShares()
    for i in range(10):
        shares.note("a", i < 3)
        shares.note("b", i < 7)
    assert shares.taken() == (10, 7)
    assert shares.taken() == (0, 0)


def test_a_sample_of_all_sources() -> None:
    shares = WaitingShares()
    assert shares.is_waiting() is None
    shares.sample_from("a", lambda: False)
    assert shares.is_waiting() is False
    shares.sample_from("b", lambda: True)
    assert shares.is_waiting() is True
    shares.sample_from("b", None)
    assert shares.is_waiting() is False
    assert shares.is_current()
    shares.sample_from("c", lambda: True, lambda: False)
    assert not shares.is_current()


@pytest.mark.parametrize(
    ("shares", "slow"),
    [
        ([1.0, 0.0, 0.9, 0.8], [1]),
        ([0.0, 1.0], [0]),
        ([0.1, 0.0, 0.9, 0.8], [0, 1]),
        # Few samples show only what is extreme.
        ([0.6, 0.0, 0.9, 0.8], []),
        ([0.9, 0.2, 0.9, 0.8], []),
        ([0.0, 0.0, 0.0, 0.9], []),
        ([0.0, 0.0], []),
        ([], []),
    ],
)
def test_who_is_slow_now(shares: list[float], slow: list[int]) -> None:
    assert slow_ranks_now(shares) == slow
