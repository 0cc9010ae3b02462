"""The contenders and their comparisons. Pure data: libraries are imported in the contenders' own processes."""

from __future__ import annotations

import functools
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness import clusters
from harness.ratios import Comparison
from harness.workers import Contender, Report

from all_reduce.cases import Case, row_of

# The size of the all-reduces that have targets, which are release criteria.
TARGET_MEGABYTES = 100.0
TARGET_OF_STOCK = 2.3
TARGET_OF_RAW_HOROVOD = 0.95


@dataclass(frozen=True)
class Kind:
    """One way to reduce.

    Attributes:
        row: row in the tables.
        cluster: how its processes are connected: "tensorflow", "horovod" or "torch".
        requires: the distribution to be installed besides ours.
    """

    row: str
    cluster: str
    requires: str = "keras"


KINDS: Mapping[str, Kind] = {
    "multi_worker": Kind("strategies.MultiWorkerMirroredStrategy", "tensorflow"),
    "stock": Kind("tf.distribute.MultiWorkerMirroredStrategy", "tensorflow"),
    "horovod": Kind("strategies.HorovodStrategy", "horovod", "horovod"),
    "raw_horovod": Kind("hvd.allreduce", "horovod", "horovod"),
    "torch": Kind("torch.distributed.all_reduce, gloo", "torch", "torch"),
}


def contenders(
    names: Sequence[str],
    all_cases: Sequence[Case],
    num_processes: int,
    horovod_slots: clusters.Slots,
) -> list[Contender]:
    """Returns the contenders of those names, in that order.

    Args:
        names: keys of `KINDS`.
        all_cases: the cases that each of them reduces, one per turn.
        num_processes: number of processes of each contender, with one core and one thread each.
        horovod_slots: makes the environments of a Horovod job.
    """
    return [
        clusters.contender(
            KINDS[name].row,
            functools.partial(_run, name, tuple(all_cases)),
            KINDS[name].cluster,
            num_processes,
            horovod_slots,
        )
        for name in names
    ]


def comparisons(all_cases: Sequence[Case], names: Collection[str]) -> list[Comparison]:
    """Returns the comparisons between the contenders in `names`."""
    pairs: list[tuple[str, str, float | None]] = [
        ("multi_worker", "stock", TARGET_OF_STOCK),
        ("horovod", "raw_horovod", TARGET_OF_RAW_HOROVOD),
        ("multi_worker", "torch", None),
        ("horovod", "torch", None),
    ]
    return [
        Comparison(
            f"{one} / {other}, {case}",
            row_of(KINDS[one].row, case),
            row_of(KINDS[other].row, case),
            target if case.megabytes == TARGET_MEGABYTES else None,
        )
        for one, other, target in pairs
        if one in names and other in names
        for case in all_cases
    ]


def _run(name: str, all_cases: Sequence[Case], report: Report) -> None:
    match name:
        case "torch":
            from all_reduce import torch_reducing

            torch_reducing.run(all_cases, report)
        case "raw_horovod":
            from all_reduce import raw_horovod

            raw_horovod.run(all_cases, report)
        case _:
            from all_reduce import reducing

            reducing.run(name, all_cases, report)
