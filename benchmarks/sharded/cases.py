"""The trainings, and the measures taken of them. Pure: standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One training, the same for all contenders.

    Attributes:
        model: "mlp" or "resnet50".
        batch_size: rows of a step in each process.
        num_steps: number of steps per measurement.
        num_skipped: number of steps before them in each turn, not measured.
        num_rounds: number of measurements of each contender.
        num_layers: for "mlp", number of dense layers before the last one.
        width: for "mlp", units of each of them.
        fused: whether torch's Adam is its fused kernel, instead of torch's default.
    """

    model: str
    batch_size: int
    num_steps: int
    num_skipped: int
    num_rounds: int
    num_layers: int = 0
    width: int = 0
    fused: bool = True

    @property
    def label(self) -> str:
        """The model, with its chosen sizes."""
        return f"mlp, {self.num_layers} layers of {self.width} units" if self.model == "mlp" else self.model


@dataclass(frozen=True)
class Measure:
    """A measured quantity.

    Attributes:
        label: name in the tables, with its unit.
    """

    label: str


STEP = Measure("ms/step")
CORE = Measure("core of a process, ms/step")
SENT = Measure("sent by a process, MB/step")
PEAK = Measure("peak of resident memory, MB")
WEIGHTS = Measure("weights, MB")
SLOTS = Measure("slots, MB")
#: In the order of a contender's turns.
MEASURES = (STEP, CORE, SENT, PEAK, WEIGHTS, SLOTS)
