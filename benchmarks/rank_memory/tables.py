"""From peaks to a table: what each rank holds beyond a tiny model's, in its own part and in tensors. Pure."""

from __future__ import annotations

from harness import ratios

from rank_memory.cases import PHASES, Case, parts_held
from rank_memory.measuring import Measured

#: As conditions of a release: weights, in training also gradients, and so many tensors.
TARGET_TENSORS = 1.0


def beyond(case: Case, phase: str, measured: Measured) -> list[tuple[float, float]]:
    """Returns, by rank, its peak beyond the base in own parts, and by how many tensors that exceeds what it holds."""
    base, found = measured[phase]
    peaks = [own - tiny for own, tiny in zip(found, base, strict=True)]
    held = parts_held(phase) * case.part_bytes
    return [(peak / case.part_bytes, (peak - held) / case.tensor_bytes) for peak in peaks]


def table(case: Case, measured: Measured) -> str:
    """One row for each phase."""
    header = ("phase", "holds, own parts", *(f"rank {rank}" for rank in range(case.num_ranks)), "most, tensors", "met")
    rows = []
    for phase in PHASES:
        found = beyond(case, phase, measured)
        most = max(tensors for _, tensors in found)
        cells = [f"{parts:.2f} ({tensors:+.2f})" for parts, tensors in found]
        met = "yes" if round(most, 2) <= TARGET_TENSORS else "no"
        rows.append((phase, str(parts_held(phase)), *cells, f"{most:+.2f}", met))
    base = [min(measured[phase][0]) / 1e6 for phase in PHASES], [max(measured[phase][0]) / 1e6 for phase in PHASES]
    return (
        f"A rank's part: {case.part_bytes / 1e6:.4g} MB, a tensor: {case.tensor_bytes / 1e6:.4g} MB; the base: "
        f"{min(base[0]):.0f} to {max(base[1]):.0f} MB.\n\n{ratios.markdown(header, rows)}"
    )
