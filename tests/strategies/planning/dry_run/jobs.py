"""Small jobs for the tests of dry runs."""

from __future__ import annotations

from typing import Any

from strategies.planning import Layout, Transformer
from strategies.planning.dry_run import DryRun, Job

MODEL = Transformer(num_layers=12, hidden_size=64, num_heads=4, sequence_length=16, vocabulary_size=128)


def job(
    data: int = 1,
    pipe: int = 1,
    tensor: int = 1,
    *,
    num_microbatches: int = 4,
    schedule: str | None = None,
    stages: tuple[int, ...] | None = None,
    **layout: Any,
) -> Job:
    """Returns a job of 12 blocks on hosts of four ranks; a micro-batch has one row unless `layout` says otherwise."""
    made = Layout(data, pipe, tensor, **{"host_size": 4, **layout})
    return Job.create(MODEL, made, data * num_microbatches * made.microbatch_size, schedule=schedule, stages=stages)


def dry_run(*args: Any, **options: Any) -> DryRun:
    """Returns the dry run of a job, see `job`."""
    return DryRun.create(job(*args, **options))
