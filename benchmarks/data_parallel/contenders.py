"""The contenders and their comparisons. Pure data: libraries are imported in the contenders' own processes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass

from harness import clusters
from harness.ratios import Comparison
from harness.workers import Contender, Report
from mirrored.workload import Workload


@dataclass(frozen=True)
class Kind:
    """One way to train on several processes.

    Attributes:
        row: row in the tables.
        program: the module of this package that runs it.
        cluster: how its processes are connected: "none", "tensorflow", "horovod" or "torch".
        requires: the distribution to be installed besides ours.
    """

    row: str
    program: str
    cluster: str = "none"
    requires: str = "keras"


KINDS: Mapping[str, Kind] = {
    "independent": Kind("plain Keras, independent processes", "training"),
    "multi_worker": Kind("strategies.MultiWorkerMirroredStrategy", "training", "tensorflow"),
    "horovod": Kind("strategies.HorovodStrategy", "training", "horovod", "horovod"),
    "raw_horovod": Kind("hvd.DistributedGradientTape", "raw_horovod", "horovod", "horovod"),
    "multi_worker_before": Kind("strategies.MultiWorkerMirroredStrategy, as before", "training", "tensorflow"),
    "horovod_before": Kind("strategies.HorovodStrategy, as before", "training", "horovod", "horovod"),
    "stock": Kind("tf.distribute.MultiWorkerMirroredStrategy, patched", "training", "tensorflow"),
    "independent_again": Kind("plain Keras, other independent processes", "training"),
    "torch_independent": Kind("torch, independent processes", "torch_training", "none", "torch"),
    "torch_ddp": Kind("torch DistributedDataParallel, gloo", "torch_training", "torch", "torch"),
}

#: The end of the names of contenders whose strategies come from another checkout.
BEFORE = "_before"

# Release criteria: the least ratio to independent processes, by model and contender.
TARGETS_OF_INDEPENDENT: Mapping[str, Mapping[str, float]] = {
    "small_cnn": {"horovod": 0.85, "multi_worker": 0.75},
    "resnet50": {"horovod": 0.93, "multi_worker": 0.85},
}
TARGET_OF_RAW_HOROVOD = 0.97
TARGET_OF_STOCK = 1.5
TARGET_OF_TORCH = 1.0


def contenders(
    names: Sequence[str],
    workload: Workload,
    num_processes: int,
    autotune: bool,
    horovod_slots: clusters.Slots,
    before: str = "",
) -> list[Contender]:
    """Returns the contenders of those names, in that order.

    Args:
        names: keys of `KINDS`.
        workload: its batch size is per process.
        num_processes: number of processes of each contender, with one core and one thread each.
        autotune: whether tf.data may tune its threads and buffers, which is its default.
        horovod_slots: makes the environments of a Horovod job.
        before: the checkout from which contenders whose names end in `BEFORE` import our packages.
    """
    return [
        clusters.contender(
            KINDS[name].row,
            functools.partial(_run, name, workload, autotune, before),
            KINDS[name].cluster,
            num_processes,
            horovod_slots,
        )
        for name in names
    ]


def comparisons(model: str, names: Collection[str]) -> list[Comparison]:
    """Returns the comparisons between the contenders in `names`."""
    of_independent = TARGETS_OF_INDEPENDENT[model]
    wanted: list[tuple[str, str, float | None]] = [
        ("horovod", "independent", of_independent["horovod"]),
        ("multi_worker", "independent", of_independent["multi_worker"]),
        ("horovod", "raw_horovod", TARGET_OF_RAW_HOROVOD),
        ("multi_worker", "stock", TARGET_OF_STOCK),
        ("horovod", "horovod_before", None),
        ("multi_worker", "multi_worker_before", None),
        ("raw_horovod", "independent", None),
        ("stock", "independent", None),
        ("torch_ddp", "torch_independent", None),
        ("independent_again", "independent", None),
    ]
    found = [
        Comparison(f"{one} / {other}", KINDS[one].row, KINDS[other].row, target)
        for one, other, target in wanted
        if one in names and other in names
    ]
    if {"independent", "torch_ddp", "torch_independent"} <= set(names):
        found += [
            Comparison(f"efficiency of {name} / of torch_ddp", efficiency(name), efficiency("torch_ddp"), target)
            for name, target in (
                ("horovod", TARGET_OF_TORCH),
                ("multi_worker", TARGET_OF_TORCH),
                ("raw_horovod", None),
                ("stock", None),
            )
            if name in names
        ]
    return found


def efficiency(name: str) -> str:
    """Returns the row of a contender's throughput relative to its library's independent processes."""
    return f"{KINDS[name].row}, efficiency"


def efficiencies(measured: Mapping[str, Sequence[float]]) -> dict[str, list[float]]:
    """Returns each contender's throughput relative to its library's independent processes, round by round."""
    result = {}
    for name, kind in KINDS.items():
        limit = KINDS["torch_independent" if name.startswith("torch") else "independent"].row
        if kind.row in measured and limit in measured:
            pairs = zip(measured[kind.row], measured[limit], strict=True)
            result[efficiency(name)] = [value / most for value, most in pairs]
    return result


def _run(name: str, workload: Workload, autotune: bool, before: str, report: Report) -> None:
    if name.endswith(BEFORE):
        # None of our packages has been imported yet.
        sys.path.insert(0, before)
    match KINDS[name].program:
        case "training":
            from data_parallel import training

            training.run(name.removesuffix(BEFORE), workload, autotune, report)
        case "raw_horovod":
            from data_parallel import raw_horovod

            raw_horovod.run(workload, autotune, report)
        case "torch_training":
            from data_parallel import torch_training

            torch_training.run(name, workload, report)
