"""The rank that holds the others up, as a table."""

from __future__ import annotations

import pytest

from strategies.control_plane.stragglers import WaitingShares, stragglers


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
