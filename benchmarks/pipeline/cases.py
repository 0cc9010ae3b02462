"""The measured cases. Pure: standard library only."""

from __future__ import annotations

from dataclasses import dataclass, replace


@dataclass(frozen=True)
class Case:
    """One training step.

    Attributes:
        label: name in the tables, unique in its part.
        num_stages: number of stages of the pipeline, each on a device of its own.
        num_microbatches: number of micro-batches of the batch.
        batch_size: rows of the step.
        size: the size that the part varies: milliseconds of sleep, units, megabytes or blocks.
    """

    label: str
    num_stages: int
    num_microbatches: int
    batch_size: int
    size: float

    @property
    def ideal_speedup(self) -> float:
        """The speedup over running the stages sequentially, if only the pipeline's fill and drain cost time."""
        p, m = self.num_stages, self.num_microbatches
        return m * p / (m + p - 1)

    def with_stages_per_device(self, number: int, *, shorter: bool) -> Case:
        """Returns the case with each stage cut into a number of stages.

        Args:
            number: the number of stages of each device.
            shorter: True if `size` is that of a stage, and not that of the model.
        """
        return replace(self, num_stages=number * self.num_stages, size=self.size / number if shorter else self.size)

    @property
    def ideal_speedup_of_zb_v(self) -> float:
        """The same for ZB-V, in passes of half a device's layers: the last device begins p - 1 of them later."""
        p, m = self.num_stages, self.num_microbatches
        return 6 * m * p / (6 * m + p - 1)

    @property
    def ideal_speedup_of_zb_h1(self) -> float:
        """The same for ZB-H1, if a forward pass and both halves of a backward pass take equally long."""
        p, m = self.num_stages, self.num_microbatches
        return 3 * m * p / (3 * m + p - 1)


@dataclass(frozen=True)
class Workload:
    """One part of the benchmark, the same for all contenders.

    Attributes:
        part: name of the part.
        cases: measured in turn by the same processes.
        num_steps: number of steps per measurement.
        num_rounds: number of measurements of each case of each contender.
    """

    part: str
    cases: tuple[Case, ...]
    num_steps: int
    num_rounds: int
