"""Jobs: schedules, stages, and what does not fit together."""

from __future__ import annotations

from typing import Any

import pytest

from strategies.multi_worker_mirrored import BUCKET_BYTES_ON_GPUS
from strategies.planning import Layout
from strategies.planning.dry_run import Job
from tests.strategies.planning.dry_run.jobs import MODEL, job


@pytest.mark.parametrize(
    ("schedule", "chunks", "name", "num_stages"),
    [
        (None, 1, "1f1b", 3),
        (None, 2, "interleaved_1f1b", 6),
        ("1f1b", 2, "1f1b", 3),
        ("interleaved_1f1b", 1, "interleaved_1f1b", 6),
        ("interleaved_1f1b", 4, "interleaved_1f1b", 12),
        ("zb_h1", 1, "zb_h1", 3),
        ("zb_v", 1, "zb_v", 6),
        ("v_half", 1, "v_half", 6),
    ],
)
def test_stages_of_a_schedule(schedule: str | None, chunks: int, name: str, num_stages: int) -> None:
    made = job(1, 3, schedule=schedule, num_chunks=chunks)
    assert (made.schedule_name, len(made.stages), sum(made.stages)) == (name, num_stages, 12)
    assert made.schedule.num_stages == num_stages
    assert made.schedule.num_microbatches == made.num_microbatches == 4


def test_stages_that_do_not_divide() -> None:
    assert job(1, 5).stages == (3, 3, 2, 2, 2)
    assert job(1, 2, stages=(5, 7)).stages == (5, 7)


def test_buckets_are_those_of_gpus() -> None:
    assert job().bucket_bytes == BUCKET_BYTES_ON_GPUS


@pytest.mark.parametrize(
    ("options", "message"),
    [
        ({"stages": (5, 6)}, "all have 12"),
        ({"stages": (12, 0)}, "at least one block"),
        ({"stages": (4, 4, 4)}, "has 2 stages"),
        ({"schedule": "2f2b"}, "1f1b, eager_1f1b"),
    ],
)
def test_what_does_not_fit_is_refused(options: dict[str, Any], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        job(1, 2, **options)


def test_rows_divide() -> None:
    with pytest.raises(ValueError, match="multiple of the rows"):
        Job.create(MODEL, Layout(num_data=3), batch_size=4)
