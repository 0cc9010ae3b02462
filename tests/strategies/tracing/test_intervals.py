"""Unions and shares of intervals."""

from strategies.tracing.events import Shares
from strategies.tracing.intervals import clipped, length, shares, union


def test_unions() -> None:
    assert union([(5, 6), (0, 2), (1, 3), (3, 4)]) == [(0, 4), (5, 6)]
    assert length([(0, 2), (1, 3), (7, 8)]) == 4
    assert clipped([(0, 2), (1, 9), (8, 9)], (1, 8)) == [(1, 2), (1, 8)]


def test_what_happens_beside_computing_does_not_count_again() -> None:
    found = shares((0, 100), computing=[(10, 40), (20, 50)], collectives=[(30, 70)], input=[(60, 90), (-5, 5)])
    assert found == Shares(100, computing=40, collectives=20, input=25)
    assert found.other == 15
