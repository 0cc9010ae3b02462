"""The contenders and their processes. Pure data: libraries are imported in the contenders' own processes."""

from __future__ import annotations

import functools
from collections.abc import Sequence

from harness import clusters, memory
from harness.clusters import Environments
from harness.workers import Contender, Report

from pipeline.cases import Workload
from pipeline.kinds import KINDS


def contenders(names: Sequence[str], workload: Workload) -> list[Contender]:
    """Returns the contenders of those names, in that order; each stage has a core, while cores last, and a thread."""
    num_stages = max(case.num_stages for case in workload.cases)
    found = []
    for name in names:
        kind = KINDS[name]
        run = functools.partial(_run, name, workload)
        if kind.processes:
            connected = clusters.torch_environments if kind.requires == "torch" else clusters.tensorflow_environments
            found.append(Contender(kind.row, run, connected(num_stages), clusters.one_core_each(num_stages)))
        else:
            count = num_stages if kind.schedule else 1
            cores = tuple(dict.fromkeys(core for [core] in clusters.one_core_each(count)))
            found.append(Contender(kind.row, run, _environment(workload.part, count), (cores,)))
    return found


def _environment(part: str, num_devices: int) -> Environments:
    return (
        {
            **clusters.one_thread_each(),
            # A thread for each device: a pass that sleeps blocks its thread. While all devices sleep, others run what
            # is between passes.
            "TF_NUM_INTEROP_THREADS": str(num_devices + 2 if part == "sleep" else max(2, num_devices)),
            "KERAS_BACKEND": "tensorflow",
            **(memory.FREES_AT_ONCE if part == "memory" else {}),
        },
    )


def _run(name: str, workload: Workload, report: Report) -> None:
    if KINDS[name].requires == "torch":
        from pipeline import torch_training

        torch_training.run(name, workload, report)
    else:
        from pipeline import keras_training

        keras_training.run(name, workload, report)
