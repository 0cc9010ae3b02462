"""The contenders and their processes. Pure data: libraries are imported in the contenders' own processes."""

from __future__ import annotations

import functools
import sys
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness import clusters
from harness.workers import Contender, Report

from sharded.cases import Workload


@dataclass(frozen=True)
class Kind:
    """One way to train.

    Attributes:
        row: row in the tables.
        cluster: how its processes are connected: "tensorflow", "horovod" or "torch".
        replicated: the name of the same contender without shards; empty for that contender itself.
        requires: the distribution to be installed besides ours.
        shard: what our strategy shards; empty for the other contenders.
    """

    row: str
    cluster: str
    replicated: str = ""
    requires: str = "keras"
    shard: str = ""


def _ours(strategy: str, replicated: str, shard: str, remark: str = "") -> Kind:
    """Returns the kind of one of our strategies with sharding."""
    cluster, requires = ("horovod", "horovod") if replicated == "horovod" else ("tensorflow", "keras")
    return Kind(f'{strategy}(shard="{shard}"){remark}', cluster, replicated, requires, shard)


KINDS: Mapping[str, Kind] = {
    "multi_worker": Kind("MultiWorkerMirroredStrategy()", "tensorflow"),
    "multi_worker_sharded": _ours("MultiWorkerMirroredStrategy", "multi_worker", "optimizer"),
    "multi_worker_weights": _ours("MultiWorkerMirroredStrategy", "multi_worker", "weights"),
    "horovod": Kind("HorovodStrategy()", "horovod", requires="horovod"),
    "horovod_sharded": _ours("HorovodStrategy", "horovod", "optimizer"),
    "horovod_weights": _ours("HorovodStrategy", "horovod", "weights"),
    "multi_worker_sharded_before": _ours("MultiWorkerMirroredStrategy", "multi_worker", "optimizer", ", as before"),
    "multi_worker_weights_before": _ours("MultiWorkerMirroredStrategy", "multi_worker", "weights", ", as before"),
    "horovod_sharded_before": _ours("HorovodStrategy", "horovod", "optimizer", ", as before"),
    "horovod_weights_before": _ours("HorovodStrategy", "horovod", "weights", ", as before"),
    "torch_ddp": Kind("torch DistributedDataParallel", "torch", requires="torch"),
    "torch_zero1": Kind("torch DistributedDataParallel, ZeroRedundancyOptimizer", "torch", "torch_ddp", "torch"),
    "torch_fsdp2": Kind("torch fully_shard(reshard_after_forward=False)", "torch", "torch_ddp", "torch"),
    "torch_fsdp2_reshard": Kind("torch fully_shard(reshard_after_forward=True)", "torch", "torch_ddp", "torch"),
}

#: The end of the names of contenders whose strategies come from another checkout.
BEFORE = "_before"


def contenders(
    names: Sequence[str], workload: Workload, num_processes: int, horovod_slots: clusters.Slots, before: str = ""
) -> list[Contender]:
    """Returns the contenders of those names, in that order.

    Args:
        names: keys of `KINDS`.
        workload: its batch size is per process.
        num_processes: number of processes of each contender, with one core and one thread each.
        horovod_slots: makes the environments of a Horovod job.
        before: the checkout from which contenders whose names end in `BEFORE` import our packages.
    """
    return [
        clusters.contender(
            KINDS[name].row,
            functools.partial(_run, name, workload, before),
            KINDS[name].cluster,
            num_processes,
            horovod_slots,
        )
        for name in names
    ]


def _run(name: str, workload: Workload, before: str, report: Report) -> None:
    if name.endswith(BEFORE):
        # None of our packages has been imported yet.
        sys.path.insert(0, before)
    if KINDS[name].requires == "torch":
        from sharded import torch_training

        torch_training.run(name, workload, report)
    else:
        from sharded import keras_training

        keras_training.run(name, KINDS[name].shard, workload, report)
