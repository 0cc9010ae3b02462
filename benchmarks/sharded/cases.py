"""The values that say what is trained, and what of it is measured. Pure: standard library only."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class Workload:
    """One training, the same for all contenders.

    Attributes:
        model: "mlp" or "resnet50".
        batch_size: rows of a step in each process.
        num_steps: measured in a row.
        num_skipped: steps before them in each turn, which are not measured.
        num_rounds: measurements of each contender.
        num_layers: mlp: dense layers before the last one.
        width: mlp: units of each of them.
        fused: whether torch's Adam is its fused kernel, instead of what torch chooses itself.
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
        """The model, with the sizes that were chosen."""
        return f"mlp, {self.num_layers} layers of {self.width} units" if self.model == "mlp" else self.model


@dataclass(frozen=True)
class Measure:
    """Something that is measured.

    Attributes:
        label: names it in the tables, with its unit.
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
