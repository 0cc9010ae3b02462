"""The measured cases, and the measures of their turns. Pure: standard library only."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Literal

import pipeline.cases
import tensor_parallel.workload

FLOAT_BYTES = 4
#: The number of stages or shards: devices over which a model is distributed.
NUM_PARTS = 2
#: The measures of a turn, in milliseconds: a step; the core's time for a step; a message of one number; the core's time
#: for a message of the size that the steps of the case send.
Measure = Literal["step", "busy", "latency", "core"]
MEASURES: tuple[Measure, ...] = ("step", "busy", "latency", "core")


@dataclass(frozen=True)
class Case:
    """One training step.

    Attributes:
        model: "dense", in stages; "mlp" or "block", split into shards.
        width: units between layers.
        batch_size: rows of the step.
        num_microbatches: number of micro-batches of a pipeline.
        schedule: schedule of our pipelines, "1f1b" or "eager_1f1b"; torch's is 1F1B.
    """

    model: str
    width: int
    batch_size: int
    num_microbatches: int = 1
    schedule: str = "1f1b"

    @property
    def axis(self) -> str:
        """The mesh axis over which the model is distributed."""
        return "pipe" if self.model == "dense" else "tensor"

    @property
    def in_shards(self) -> tensor_parallel.workload.Workload:
        """The corresponding workload of the benchmark of split layers, whose models and batches are used."""
        return tensor_parallel.workload.Workload(self.model, self.width, self.batch_size, 1, 1)

    def in_stages(self, num_stages: int) -> pipeline.cases.Case:
        """Returns the corresponding case of the benchmark of pipelines, whose models and batches are used."""
        return pipeline.cases.Case(self.label, num_stages, self.num_microbatches, self.batch_size, self.width)

    @property
    def label(self) -> str:
        """The name in the tables."""
        microbatches = f", m={self.num_microbatches}, {self.schedule}" if self.axis == "pipe" else ""
        return f"{self.model}, width {self.width}, batch {self.batch_size}{microbatches}"


@dataclass(frozen=True)
class Turn:
    """One measurement of a case."""

    case: Case
    measure: Measure

    @property
    def label(self) -> str:
        """The name among all turns."""
        return f"{self.case.label}, {self.measure}"


@dataclass(frozen=True)
class Workload:
    """One part of the benchmark, the same for all contenders.

    Attributes:
        cases: cases of one axis, measured in turn by the same processes.
        num_steps: number of steps per measurement.
        num_rounds: number of measurements of each turn.
    """

    cases: tuple[Case, ...]
    num_steps: int
    num_rounds: int

    @property
    def turns(self) -> tuple[Turn, ...]:
        """The measurements of a contender's turns, in order."""
        return tuple(Turn(case, measure) for case in self.cases for measure in MEASURES)


def workloads(models: Sequence[str], cases: Sequence[Case], num_steps: int, num_rounds: int) -> list[Workload]:
    """Returns one workload for each of the models."""
    found = []
    for model in dict.fromkeys(models):
        own = tuple(dict.fromkeys(case for case in cases if case.model == model))
        found.append(Workload(own, num_steps, num_rounds))
    return found
