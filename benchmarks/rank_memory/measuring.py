"""Measurements of the ranks: every phase on all of them at once."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Mapping

from harness import clusters, memory
from harness.workers import Report, Workers

from rank_memory.cases import PHASES, Case

#: By phase, the bytes of each rank: with the smaller model, and with the large one.
Measured = Mapping[str, tuple[tuple[float, ...], tuple[float, ...]]]


def measure(
    case: Case, cluster: str, slots: clusters.Slots, *, frees_at_once: bool, timeout_seconds: float
) -> Measured:
    """Returns the peak of resident memory of all ranks, phase by phase; each model has its own processes.

    Args:
        case: the model to train.
        cluster: "tensorflow" or "horovod".
        slots: makes the environments of "horovod".
        frees_at_once: whether allocators return freed memory at once, so that it is not counted.
        timeout_seconds: timeout of the start, and of each phase.
        timeout_seconds: how long the start and a phase may take.

    Raises:
        WorkerError: a process fails, dies or takes too long. All processes are ended then.
    """
    found = []
    for each in (case.smaller, case):
        with tempfile.TemporaryDirectory() as folder:
            run = functools.partial(_run, each, cluster, folder)
            made = clusters.contender(f"{cluster}, {case.label}", run, cluster, case.num_ranks, slots)
            if frees_at_once:
                environments = tuple({**environment, **memory.FREES_AT_ONCE} for environment in made.environments)
                made = dataclasses.replace(made, environments=environments)
            # All ranks are measured at once: none is ever frozen.
            workers = Workers(dataclasses.replace(made, freezes=False), timeout_seconds)
            try:
                found.append([workers.measure() for _ in PHASES])
            finally:
                workers.stop()
    return {phase: (found[0][index], found[1][index]) for index, phase in enumerate(PHASES)}


def _run(case: Case, cluster: str, folder: str, report: Report) -> None:
    # In the ranks' own processes, where TensorFlow may start.
    from rank_memory import training

    training.run(case, cluster, folder, report)
