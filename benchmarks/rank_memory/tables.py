"""A table of the peaks: what each rank holds above a fixed base, in units of its part and of tensors. Pure."""

from __future__ import annotations

from harness import ratios

from rank_memory.cases import PHASES, TARGET_TENSORS, Case, parts_held
from rank_memory.measuring import Measured


def held(case: Case, phase: str, measured: Measured) -> list[tuple[float, float]]:
    """Returns, by rank, the peak in a phase in units of one tensor, and the bytes of the base.

    Two models that differ only in the size of their tensors give both: memory that grows with a tensor is held, the
    rest is the base.
    """
    grown = case.tensor_bytes - case.smaller.tensor_bytes
    tensors = [(large - small) / grown for small, large in zip(*measured[phase], strict=True)]
    return [
        (count, large - count * case.tensor_bytes) for count, large in zip(tensors, measured[phase][1], strict=True)
    ]


def table(case: Case, measured: Measured) -> str:
    """Returns a table with one row per phase."""
    part = case.part_bytes / case.tensor_bytes
    header = (
        "phase",
        "needs, own parts",
        *(f"rank {rank}: parts (tensors beyond)" for rank in range(case.num_ranks)),
        "base, MB",
        "most, tensors beyond",
        "met",
    )
    rows = []
    for phase in PHASES:
        needed, found = parts_held(phase), held(case, phase, measured)
        beyond = [tensors - needed * part for tensors, _ in found]
        cells = [f"{tensors / part:.2f} ({more:+.2f})" for (tensors, _), more in zip(found, beyond, strict=True)]
        base = max(own for _, own in found) / 1e6
        # Compared as printed.
        met = "yes" if round(max(beyond), 2) <= TARGET_TENSORS else "no"
        rows.append((phase, str(needed), *cells, f"{base:.0f}", f"{max(beyond):+.2f}", met))
    return (
        f"A rank's part: {case.part_bytes / 1e6:.4g} MB, a tensor: {case.tensor_bytes / 1e6:.4g} MB.\n\n"
        f"{ratios.markdown(header, rows)}"
    )
