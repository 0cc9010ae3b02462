"""The model that is measured, and the phases of its life. Pure: standard library only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

FLOAT_BYTES = 4
#: In the order in which they are measured. The first pass draws the weights: nothing before it needs them.
PHASES = ("build", "first pass", "save_weights", "load_weights", "train", "save")


@dataclass(frozen=True)
class Case:
    """One model over the ranks of one mesh.

    Attributes:
        mesh: sizes of the axes "pipe" and "tensor"; a rank for each device.
        num_layers: layers of `width` units, without biases; a multiple of the stages.
        width: twice a multiple of the shards.
    """

    mesh: Mapping[str, int]
    num_layers: int
    width: int

    @property
    def label(self) -> str:
        """Names it in the tables."""
        return ",".join(f"{axis}={size}" for axis, size in self.mesh.items())

    @property
    def num_ranks(self) -> int:
        """The processes."""
        return math.prod(self.mesh.values())

    @property
    def num_stages(self) -> int:
        """The stages of the pipeline; one without."""
        return self.mesh.get("pipe", 1)

    @property
    def tensor_bytes(self) -> int:
        """The size of one weight, whole."""
        return FLOAT_BYTES * self.width**2

    @property
    def part_bytes(self) -> int:
        """The size of the weights of one rank."""
        return self.num_layers * self.tensor_bytes // self.num_ranks

    @property
    def smaller(self) -> Case:
        """The same model with half the width: a quarter of the memory, beside the same base."""
        return dataclasses.replace(self, width=self.width // 2)

    @property
    def cuts(self) -> list[str]:
        """The first layer of each stage but the first."""
        return [layer_name(stage * self.num_layers // self.num_stages) for stage in range(1, self.num_stages)]


def layer_name(index: int) -> str:
    """The name of one layer."""
    return f"dense_{index}"


def parts_held(phase: str) -> int:
    """Returns how many times the bytes of its weights a rank holds in a phase that wastes none.

    Training holds the gradients beside the weights; plain SGD has no slots.
    """
    return {"build": 0, "train": 2}.get(phase, 1)
