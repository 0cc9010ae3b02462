"""The cases that are measured. Pure: standard library only."""

from __future__ import annotations

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
