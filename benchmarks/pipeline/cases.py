"""The cases that are measured, and their turns. Pure: standard library only."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class Case:
    """One training step.

    Attributes:
        label: names it in the tables, unlike all others of its part.
        num_stages: of the pipeline.
        num_microbatches: into which its batch is cut.
        batch_size: rows of the step.
        size: what the part measures by: milliseconds of sleep, units, megabytes or blocks.
    """

    label: str
    num_stages: int
    num_microbatches: int
    batch_size: int
    size: float

    @property
    def ideal_speedup(self) -> float:
        """Over the stages one after the other, where nothing but the pipeline's filling and emptying costs."""
        p, m = self.num_stages, self.num_microbatches
        return m * p / (m + p - 1)


@dataclass(frozen=True)
class Workload:
    """One part of the benchmark, the same for all contenders.

    Attributes:
        part: its name.
        cases: measured in turn by the same processes.
        num_steps: measured in a row.
        num_rounds: measurements of each case of each contender.
    """

    part: str
    cases: tuple[Case, ...]
    num_steps: int
    num_rounds: int


def turns(cases: Sequence[Case]) -> Iterator[Case]:
    """Returns the cases that a contender's turns measure, one after the other, without end.

    Every other pass goes backwards, as the contenders' turns do: so each case is measured in both orders of them.
    """
    return itertools.cycle([*cases, *reversed(cases)])


def by_case(measured: Mapping[str, Sequence[float]], cases: Sequence[Case]) -> dict[str, list[float]]:
    """The measurements of all turns, put under the names of contender and case."""
    result: dict[str, list[float]] = {row_of(row, case): [] for case in cases for row in measured}
    for row, values in measured.items():
        for case, value in zip(turns(cases), values, strict=False):
            result[row_of(row, case)].append(value)
    return result


def row_of(row: str, case: Case) -> str:
    """The row of a contender's case."""
    return f"{row}: {case.label}"
