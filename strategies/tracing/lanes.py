"""Lanes: viewers draw slices that overlap on one track only if one contains the other. Pure."""

from __future__ import annotations

from collections.abc import Iterable

from strategies.tracing.events import Slice


def in_lanes(slices: Iterable[Slice]) -> list[tuple[int, Slice]]:
    """Returns slices in the order in which they begin, each with the first lane on which no other runs then."""
    ends: list[int] = []
    found = []
    for each in sorted(slices, key=lambda each: (each.begin, each.end)):
        lane = next((lane for lane, end in enumerate(ends) if end <= each.begin), len(ends))
        if lane == len(ends):
            ends.append(0)
        ends[lane] = each.end
        found.append((lane, each))
    return found
