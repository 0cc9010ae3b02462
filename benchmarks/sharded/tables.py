"""Tables of the measurements: ratios of times with their targets, and all medians. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

from harness import ratios
from harness.ratios import Comparison
from harness.turns import row_of

from sharded.cases import MEASURES, STEP
from sharded.contenders import BEFORE, KINDS

# Release criteria: the time of a sharded step relative to the replicated one of the same strategy, by what is sharded,
# and relative to torch's FSDP2.
TARGETS_OF_REPLICATED = {"optimizer": 1.0, "weights": 1.15}
TARGET_OF_FSDP2 = 0.9

Measured = Mapping[str, Sequence[float]]


def share(name: str) -> str:
    """Returns the row of a contender's time relative to its own library's replicated step."""
    return f"{KINDS[name].row}: share of replicated"


def shares(times: Measured, names: Collection[str]) -> dict[str, list[float]]:
    """Returns each sharded contender's time relative to its own library's replicated step, round by round."""
    return {
        share(name): [
            own / whole
            for own, whole in zip(times[KINDS[name].row], times[KINDS[KINDS[name].replicated].row], strict=True)
        ]
        for name in names
        if KINDS[name].replicated in names
    }


def times_of(measured: Measured, names: Sequence[str]) -> dict[str, Sequence[float]]:
    """Returns the times of steps by contender."""
    return {KINDS[name].row: measured[row_of(KINDS[name].row, STEP)] for name in names}


def comparisons(names: Collection[str]) -> list[Comparison]:
    """Returns the comparisons between the contenders in `names`."""
    ours = [name for name in names if KINDS[name].requires != "torch" and KINDS[name].replicated]
    peers = [name for name in names if KINDS[name].requires == "torch" and KINDS[name].replicated]
    found = []

    def compare(name: str, other: str, target: float | None = None) -> None:
        if other in names:
            found.append(
                Comparison(f"time of {name} / {other}", KINDS[name].row, KINDS[other].row, target, at_most=True)
            )

    for name in ours:
        compare(
            name, KINDS[name].replicated, None if name.endswith(BEFORE) else TARGETS_OF_REPLICATED[KINDS[name].shard]
        )
    for name in ours:
        compare(name, f"{name}{BEFORE}")
    ours = [name for name in ours if not name.endswith(BEFORE)]
    for name in ours:
        for peer in peers:
            compare(name, peer, _target_of(name, peer))
        compare(name, "torch_ddp")
    for name in peers:
        compare(name, KINDS[name].replicated)
    found += [
        Comparison(f"share of replicated of {name} / of {peer}", share(name), share(peer))
        for name in ours
        for peer in peers
        if {KINDS[name].replicated, KINDS[peer].replicated} <= set(names)
    ]
    return found


def _target_of(name: str, peer: str) -> float | None:
    """Returns the target; weights resharded after use are compared only with an FSDP2 that reshards, too."""
    keeps = peer == "torch_fsdp2"
    is_target = peer.startswith("torch_fsdp2") and not (keeps and KINDS[name].shard == "weights")
    return TARGET_OF_FSDP2 if is_target else None


def all_measured(measured: Measured, names: Sequence[str]) -> str:
    """Returns a table with the medians of all measures, one row per contender."""
    return medians(measured, [KINDS[name].row for name in names])


def medians(measured: Measured, rows: Iterable[str]) -> str:
    """Returns a table with the medians of all measures, for the given rows."""
    found = [[row, *(f"{statistics.median(measured[row_of(row, each)]):.4g}" for each in MEASURES)] for row in rows]
    return ratios.markdown(("medians", *(each.label for each in MEASURES)), found)
