"""The contenders of `--price`: ours, and ours without each part of what makes its numbers exact.

Pure data: TensorFlow is imported in the contenders' own processes.
"""

from __future__ import annotations

import functools
from collections.abc import Mapping, Sequence

from harness import clusters
from harness.ratios import Comparison
from harness.workers import Contender, Report

from mirrored.workload import AGREEMENT, LEDGER, ROW_WEIGHTS, Job, Workload

#: By model, the largest acceptable ratio of the speed without any of these parts to the speed with them.
LIMITS: Mapping[str, float] = {"small_cnn": 1.05, "resnet50": 1.02}
NUM_PROCESSES = 2

JOBS: tuple[Job, ...] = (
    Job("MirroredStrategy, 2 devices", 1, (ROW_WEIGHTS,)),
    Job(f"MultiWorkerMirroredStrategy, {NUM_PROCESSES} processes", NUM_PROCESSES, (ROW_WEIGHTS, AGREEMENT, LEDGER)),
)


def contenders(workload: Workload) -> list[Contender]:
    """Returns the contenders: each job as it is, without each of its parts, without all, and with `exact()`."""
    return [_contender(job, workload, name, without) for job in JOBS for name, without in _variants(job).items()]


def comparisons(model: str) -> list[Comparison]:
    """Returns what each part costs: images/s without it, relative to those with it."""
    found = []
    for job in JOBS:
        for name, without in _variants(job).items():
            if name:
                limit = LIMITS[model] if without == job.parts else None
                one, other = _row(job, name), _row(job, "")
                if name == "with exact()":
                    # The other way around: what is measured has something more.
                    one, other = other, one
                found.append(Comparison(f"{one} / {other}", one, other, limit, at_most=True))
    return found


def _variants(job: Job) -> dict[str, tuple[str, ...] | None]:
    """Returns the parts that each variant of a job is without, by the name of the variant; None with `exact()`."""
    found: dict[str, tuple[str, ...] | None] = {"": ()}
    found |= {f"without {part}": (part,) for part in job.parts}
    if len(job.parts) > 1:
        found["without all of these"] = job.parts
    found["with exact()"] = None
    return found


def _row(job: Job, variant: str) -> str:
    return f"{job.row}, {variant}" if variant else job.row


def _contender(job: Job, workload: Workload, variant: str, without: Sequence[str] | None) -> Contender:
    run = functools.partial(_run, job, workload, without)
    if job.num_processes == 1:
        return Contender(_row(job, variant), run)
    return clusters.contender(_row(job, variant), run, "tensorflow", job.num_processes, clusters.independent)


def _run(job: Job, workload: Workload, without: Sequence[str] | None, report: Report) -> None:
    from mirrored import price_training

    price_training.run(job, workload, without, report)
