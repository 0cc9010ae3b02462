"""The contenders and their processes. Pure data: libraries are imported in the contenders' own processes."""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from harness import clusters
from harness.workers import Contender, Report

from model_parallel.cases import NUM_PARTS, Workload


@dataclass(frozen=True)
class Kind:
    """One way to train.

    Attributes:
        row: row in the tables.
        alone: the name of the contender with the same library on one device; empty for that contender itself.
        cluster: how its processes are connected: "none" if it has one, "tensorflow", "horovod" or "torch".
        requires: the distribution to be installed besides ours.
        axes: the mesh axes over which it can distribute models.
    """

    row: str
    alone: str = ""
    cluster: str = "none"
    requires: str = "keras"
    axes: tuple[str, ...] = ("pipe", "tensor")

    @property
    def num_processes(self) -> int:
        """The number of processes: one, or one for each stage or shard."""
        return 1 if self.cluster == "none" else NUM_PARTS


KINDS: Mapping[str, Kind] = {
    "plain": Kind("plain Keras, 1 device"),
    "torch": Kind("torch, 1 device", requires="torch"),
    "one_process": Kind("ours, 1 process of 2 devices", "plain"),
    "torch_split": Kind("torch.distributed, gloo, 2 processes", "torch", "torch", "torch"),
    "multi_worker": Kind("ours, MultiWorkerMirroredStrategy, 2 processes", "plain", "tensorflow"),
    "horovod": Kind("ours, HorovodStrategy, 2 processes", "plain", "horovod", "horovod"),
    "raw": Kind("TensorFlow's operations by hand, 2 processes", "plain", "tensorflow", axes=("pipe",)),
}


def contenders(names: Sequence[str], workload: Workload, horovod_slots: clusters.Slots) -> list[Contender]:
    """Returns the contenders of those names, in that order: one core and one thread for each device.

    Args:
        names: keys of `KINDS`.
        workload: the cases that each of them measures, one per turn.
        horovod_slots: makes the environments of a Horovod job.
    """
    found = []
    for name in names:
        kind = KINDS[name]
        run = functools.partial(_run, name, workload)
        if kind.num_processes > 1 or not kind.alone:
            found.append(clusters.contender(kind.row, run, kind.cluster, kind.num_processes, horovod_slots))
        else:
            cores = tuple(dict.fromkeys(core for [core] in clusters.one_core_each(NUM_PARTS)))
            found.append(Contender(kind.row, run, clusters.independent(1), (cores,)))
    return found


def _run(name: str, workload: Workload, report: Report) -> None:
    if KINDS[name].requires == "torch":
        from model_parallel import torch_training

        torch_training.run(name == "torch_split", workload, report)
    elif name == "raw":
        from model_parallel import raw_tensorflow

        raw_tensorflow.run(workload, report)
    else:
        from model_parallel import keras_training

        keras_training.run(name, workload, report)
