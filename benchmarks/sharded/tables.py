"""From measurements to tables: times as ratios with their targets, and all that was measured. Pure."""

from __future__ import annotations

import statistics
from collections.abc import Collection, Iterable, Mapping, Sequence

from harness import ratios
from harness.ratios import Comparison
from harness.turns import row_of

from sharded.cases import MEASURES, STEP
from sharded.contenders import BEFORE, KINDS

# As conditions of a release: the time of a sharded step relative to the replicated one of the same strategy, by what is
# in shards, and to that of torch's FSDP2.
TARGETS_OF_REPLICATED = {"optimizer": 1.0, "weights": 1.15}
TARGET_OF_FSDP2 = 0.9

Measured = Mapping[str, Sequence[float]]


def share(name: str) -> str:
    """The name of a contender's time as a share of its own library's replicated step."""
    return f"{KINDS[name].row}: share of replicated"


def shares(times: Measured, names: Collection[str]) -> dict[str, list[float]]:
    """The time of each sharded contender, round by round, as a share of its own library's replicated step."""
    return {
        share(name): [
            own / whole
            for own, whole in zip(times[KINDS[name].row], times[KINDS[KINDS[name].replicated].row], strict=True)
        ]
        for name in names
        if KINDS[name].replicated in names
    }


def times_of(measured: Measured, names: Sequence[str]) -> dict[str, Sequence[float]]:
    """The times of steps by contender."""
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
    """A stage that drops whole weights behind their use is compared with one of torch's that does."""
    keeps = peer == "torch_fsdp2"
    is_target = peer.startswith("torch_fsdp2") and not (keeps and KINDS[name].shard == "weights")
    return TARGET_OF_FSDP2 if is_target else None


def all_measured(measured: Measured, names: Sequence[str]) -> str:
    """One row for each contender: the medians of all that was measured."""
    return medians(measured, [KINDS[name].row for name in names])


def medians(measured: Measured, rows: Iterable[str]) -> str:
    """A table of the medians of all that was measured, with a row for each of these."""
    found = [[row, *(f"{statistics.median(measured[row_of(row, each)]):.4g}" for each in MEASURES)] for row in rows]
    return ratios.markdown(("medians", *(each.label for each in MEASURES)), found)
