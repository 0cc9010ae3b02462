"""A preset that is loaded over several ranks: its sizes, and a table of what each rank holds. Pure."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness import ratios

from rank_memory.cases import FLOAT_BYTES, TARGET_TENSORS

#: In the order of measurement. The first one reports the size of a rank's part of the weights, not a peak.
PHASES = ("part", "load", "train")
#: The number of tokens in the vocabulary of GPT-2.
VOCABULARY_SIZE = 50257
NUM_POSITIONS = 128


@dataclass(frozen=True)
class PresetCase:
    """A model like GPT-2 in one file, over the ranks of one mesh.

    Attributes:
        mesh: sizes of the axes "data" and "tensor"; one rank per device.
        num_layers: number of decoder layers.
        width: size of the hidden vectors; a multiple of twice the number of shards, and of 32.
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
    def tensor_bytes(self) -> int:
        """The size of the largest tensor, the embeddings of the vocabulary, in bytes."""
        return FLOAT_BYTES * VOCABULARY_SIZE * self.width

    @property
    def preset_bytes(self) -> int:
        """The size of all weights, in bytes."""
        layer = 12 * self.width**2 + 13 * self.width
        others = (VOCABULARY_SIZE + NUM_POSITIONS + 2) * self.width
        return FLOAT_BYTES * (self.num_layers * layer + others)

    @property
    def smaller(self) -> PresetCase:
        """A copy with half the width, with the same base."""
        return dataclasses.replace(self, width=self.width // 2)


#: By phase, the bytes of each rank.
Peaks = Mapping[str, Sequence[float]]


def held(case: PresetCase, phase: str, small: Peaks, large: Peaks) -> list[tuple[float, float]]:
    """Returns, by rank, what it holds beyond its part, in units of the largest tensor, and the bytes of the base.

    Two presets that differ only in the size of their tensors give both: memory beyond the part that grows with a tensor
    is held, the rest is the base.
    """
    grown = case.tensor_bytes - case.smaller.tensor_bytes
    found = []
    for rank in range(case.num_ranks):
        beyond = [peaks[phase][rank] - peaks["part"][rank] for peaks in (small, large)]
        tensors = (beyond[1] - beyond[0]) / grown
        found.append((tensors, beyond[1] - tensors * case.tensor_bytes))
    return found


def table(case: PresetCase, small: Peaks, large: Peaks) -> str:
    """Returns a table with one row per phase."""
    header = (
        "phase",
        *(f"rank {rank}: peak, MB (tensors beyond its part)" for rank in range(case.num_ranks)),
        "base, MB",
        "most, tensors beyond",
        "met",
    )
    rows = []
    for phase in PHASES[1:]:
        found = held(case, phase, small, large)
        cells = [f"{peak / 1e6:.0f} ({more:+.2f})" for peak, (more, _) in zip(large[phase], found, strict=True)]
        most = max(more for more, _ in found)
        base = max(own for _, own in found) / 1e6
        met = "yes" if round(most, 2) <= TARGET_TENSORS else "no"
        rows.append((phase, *cells, f"{base:.0f}", f"{most:+.2f}", met))
    parts = ", ".join(f"{part / 1e6:.0f}" for part in large["part"])
    return (
        f"The preset: {case.preset_bytes / 1e6:.0f} MB, its largest tensor: {case.tensor_bytes / 1e6:.0f} MB; the "
        f"ranks' parts: {parts} MB.\n\n{ratios.markdown(header, rows)}"
    )
