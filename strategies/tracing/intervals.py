"""Sums of times that overlap. Pure."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from strategies.tracing.events import Shares

#: Begin and end.
Interval = tuple[int, int]


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the union of intervals, as disjoint intervals in ascending order."""
    merged: list[Interval] = []
    for begin, end in sorted(intervals):
        if merged and begin <= merged[-1][1]:
            merged[-1] = (merged[-1][0], max(merged[-1][1], end))
        else:
            merged.append((begin, end))
    return merged


def length(intervals: Iterable[Interval]) -> int:
    """Returns the length of the union of intervals."""
    return sum(end - begin for begin, end in union(intervals))


def clipped(intervals: Iterable[Interval], whole: Interval) -> list[Interval]:
    """Returns the parts of intervals that lie within `whole`."""
    return [
        (max(begin, whole[0]), min(end, whole[1])) for begin, end in intervals if begin < whole[1] and end > whole[0]
    ]


def shares(
    whole: Interval, computing: Sequence[Interval], collectives: Sequence[Interval], input: Sequence[Interval]
) -> Shares:
    """Returns the parts of a time; what happens beside something named before it does not count again."""
    seen: list[Interval] = []
    total, parts = 0, []
    for intervals in (computing, collectives, input):
        seen = union([*seen, *clipped(intervals, whole)])
        parts.append(length(seen) - total)
        total += parts[-1]
    return Shares(whole[1] - whole[0], *parts)
