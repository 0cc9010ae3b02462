"""The overlap in a trace, as plain intervals. Standard library only."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass


@dataclass(frozen=True, order=True)
class Interval:
    """From `start` to `end`, in milliseconds of one clock."""

    start: float
    end: float


@dataclass(frozen=True)
class Step:
    """One training step.

    Attributes:
        whole: the step.
        backward: the ops of its backward pass.
        reductions: its all-reduces, from the moment in which each is asked for to the one in which it is there.
    """

    whole: Interval
    backward: tuple[Interval, ...]
    reductions: tuple[Interval, ...]

    @property
    def share_started(self) -> float:
        """The part of the all-reduces that started before the last op of the backward pass had."""
        last = max(op.start for op in self.backward)
        return sum(reduction.start < last for reduction in self.reductions) / len(self.reductions)

    @property
    def share_hidden(self) -> float:
        """The part of the time with an all-reduce on its way in which the backward pass was still running."""
        ends = max(op.end for op in self.backward)
        under_way = union(self.reductions)
        return sum(max(0.0, min(part.end, ends) - part.start) for part in under_way) / length(under_way)


def steps(wholes: Iterable[Interval], backward: Sequence[Interval], reductions: Sequence[Interval]) -> tuple[Step, ...]:
    """Each step with what began in it; those with nothing of one kind, which the trace holds in part, are left out."""
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
    """The same time, as intervals that do not touch."""
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
    """The step from left to right, a column for each part of it: what ran in more than half of the column."""
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
