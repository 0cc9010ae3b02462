"""The measured model, and the phases of its life. Pure: standard library only."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass

FLOAT_BYTES = 4
#: Release criterion: the number of tensors that a rank may hold beyond its weights and, in training, gradients.
TARGET_TENSORS = 1.0
#: In the order of measurement. The first pass initializes the weights: nothing before it needs them.
PHASES = ("build", "first pass", "save_weights", "load_weights", "train", "save")


@dataclass(frozen=True)
class Case:
    """One model over the ranks of one mesh.

    Attributes:
        mesh: sizes of the axes "pipe" and "tensor"; one rank per device.
        num_layers: number of layers of `width` units, without biases; a multiple of the number of stages.
        width: a multiple of twice the number of shards.
    """

    mesh: Mapping[str, int]
    num_layers: int
    width: int

    @property
    def label(self) -> str:
        """The name in the tables."""
        return ",".join(f"{axis}={size}" for axis, size in self.mesh.items())

    @property
    def num_ranks(self) -> int:
        """The number of processes."""
        return math.prod(self.mesh.values())

    @property
    def num_stages(self) -> int:
        """The number of stages of the pipeline; 1 without a pipeline."""
        return self.mesh.get("pipe", 1)

    @property
    def tensor_bytes(self) -> int:
        """The size of one unsharded weight, in bytes."""
        return FLOAT_BYTES * self.width**2

    @property
    def part_bytes(self) -> int:
        """The size of the weights of one rank, in bytes."""
        return self.num_layers * self.tensor_bytes // self.num_ranks

    @property
    def smaller(self) -> Case:
        """A copy with half the width: a quarter of the memory, with the same base."""
        return dataclasses.replace(self, width=self.width // 2)

    @property
    def cuts(self) -> list[str]:
        """The names of the first layers of all stages but the first."""
        return [layer_name(stage * self.num_layers // self.num_stages) for stage in range(1, self.num_stages)]


def layer_name(index: int) -> str:
    """Returns the name of one layer."""
    return f"dense_{index}"


def parts_held(phase: str) -> int:
    """Returns the memory that a phase needs, as a multiple of the bytes of the rank's weights.

    Training holds the gradients besides the weights; plain SGD has no slots.
    """
    return {"build": 0, "train": 2}.get(phase, 1)
