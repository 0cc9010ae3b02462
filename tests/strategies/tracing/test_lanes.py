"""Lanes of slices that overlap."""

from strategies.tracing.events import Slice
from strategies.tracing.lanes import in_lanes


def test_overlapping_slices_have_lanes_of_their_own() -> None:
    spans = [(0, 10), (2, 5), (5, 7), (8, 12), (10, 11)]
    found = in_lanes(Slice("t", "x", begin, end) for begin, end in reversed(spans))
    assert [(lane, (each.begin, each.end)) for lane, each in found] == list(zip([0, 1, 1, 1, 0], spans, strict=True))
