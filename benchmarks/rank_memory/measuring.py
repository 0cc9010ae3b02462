"""Measurements of the ranks: every phase on all of them at once."""

from __future__ import annotations

import dataclasses
import functools
import tempfile
from collections.abc import Mapping

from harness import clusters, memory
from harness.workers import Contender, Report, Workers

from rank_memory import preset_cases
from rank_memory.cases import PHASES, Case
from rank_memory.preset_cases import Peaks, PresetCase

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

    Raises:
        WorkerError: a process fails, dies or takes too long. All processes are ended then.
    """
    found = []
    for each in (case.smaller, case):
        with tempfile.TemporaryDirectory() as folder:
            run = functools.partial(_run, each, cluster, folder)
            made = clusters.contender(f"{cluster}, {case.label}", run, cluster, case.num_ranks, slots)
            found.append(_measure_phases(made, len(PHASES), timeout_seconds, frees_at_once=frees_at_once))
    return {phase: (found[0][index], found[1][index]) for index, phase in enumerate(PHASES)}


def measure_preset(
    case: PresetCase, cluster: str, slots: clusters.Slots, *, frees_at_once: bool, timeout_seconds: float
) -> tuple[Peaks, Peaks]:
    """Returns the bytes of each rank by phase: with the smaller preset, and with the large one.

    Arguments and errors are those of `measure`.
    """
    found: list[Peaks] = []
    for each in (case.smaller, case):
        with tempfile.TemporaryDirectory() as folder:
            writer = clusters.contender(
                f"writing {case.label}", functools.partial(_write, each, folder), "none", 1, slots
            )
            Workers(writer, timeout_seconds).stop()
            run = functools.partial(_load, each, cluster, folder)
            made = clusters.contender(f"{cluster}, preset, {case.label}", run, cluster, case.num_ranks, slots)
            phases = preset_cases.PHASES
            measured = _measure_phases(made, len(phases), timeout_seconds, frees_at_once=frees_at_once)
            found.append(dict(zip(phases, measured, strict=True)))
    return found[0], found[1]


def _measure_phases(
    made: Contender, num_phases: int, timeout_seconds: float, *, frees_at_once: bool
) -> list[tuple[float, ...]]:
    if frees_at_once:
        environments = tuple({**environment, **memory.FREES_AT_ONCE} for environment in made.environments)
        made = dataclasses.replace(made, environments=environments)
    # All ranks are measured at once: none is ever frozen.
    workers = Workers(dataclasses.replace(made, freezes=False), timeout_seconds)
    try:
        return [workers.measure() for _ in range(num_phases)]
    finally:
        workers.stop()


def _write(case: PresetCase, folder: str, report: Report) -> None:
    from rank_memory import preset_training

    preset_training.write(case, folder, report)


def _load(case: PresetCase, cluster: str, folder: str, report: Report) -> None:
    from rank_memory import preset_training

    preset_training.run(case, cluster, folder, report)


def _run(case: Case, cluster: str, folder: str, report: Report) -> None:
    # In the ranks' own processes, where TensorFlow may start.
    from rank_memory import training

    training.run(case, cluster, folder, report)
