"""The overlap in a trace, from plain intervals. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Interval:
    """An interval from `start` to `end`, in milliseconds of one clock."""

    start: float
    end: float


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        whole: interval of the step.
        backward: intervals of the ops of its backward pass.
        reductions: intervals of its all-reduces, each from its request to its result.
    """

    whole: Interval
    backward: tuple[Interval, ...]
    reductions: tuple[Interval, ...]

    @property
    def share_started(self) -> float:
        """The fraction of the all-reduces that started before the last op of the backward pass started."""
        last = max(op.start for op in self.backward)
        return sum(reduction.start < last for reduction in self.reductions) / len(self.reductions)

    @property
    def share_hidden(self) -> float:
        """The fraction of the all-reduces' time in which the backward pass was still running."""
        ends = max(op.end for op in self.backward)
        under_way = union(self.reductions)
        return sum(max(0.0, min(part.end, ends) - part.start) for part in under_way) / length(under_way)


def steps(wholes: Iterable[Interval], backward: Sequence[Interval], reductions: Sequence[Interval]) -> tuple[Step, ...]:
    """Returns each step with the ops and all-reduces that began in it; skips steps without either (cut-off traces)."""
    found = []
    for whole in sorted(wholes):
        ops, sums = (
            tuple(sorted(interval for interval in kind if whole.start <= interval.start < whole.end))
            for kind in (backward, reductions)
        )
        if ops and sums:
            found.append(Step(whole, ops, sums))
    return tuple(found)


def union(intervals: Iterable[Interval]) -> list[Interval]:
    """Returns the union of the intervals, as disjoint intervals."""
    merged: list[Interval] = []
    for interval in sorted(intervals):
        if merged and interval.start <= merged[-1].end:
            merged[-1] = Interval(merged[-1].start, max(merged[-1].end, interval.end))
        else:
            merged.append(interval)
    return merged


def length(intervals: Iterable[Interval]) -> float:
    """Returns the sum of the intervals' lengths, in milliseconds."""
    return sum(interval.end - interval.start for interval in intervals)


def chart(step: Step, width: int = 72) -> str:
    """Draws a step from left to right; `#` marks columns that are busy for more than half of their time."""
    unit = (step.whole.end - step.whole.start) / width

    def row(name: str, intervals: Iterable[Interval]) -> str:
        merged = union(intervals)
        cells = ""
        for column in range(width):
            begin = step.whole.start + column * unit
            busy = sum(max(0.0, min(part.end, begin + unit) - max(part.start, begin)) for part in merged)
            cells += "#" if busy > unit / 2 else "-" if busy > 0 else "."
        return f"{name:<11} {cells}"

    return "\n".join((row("backward", step.backward), row("all-reduce", step.reductions)))
