"""The programs of positions, as literal lists."""

from __future__ import annotations

import itertools
from collections import Counter

import pytest

from strategies.planning.dry_run.operations import OperationKind
from strategies.planning.dry_run.programs import programs_of
from strategies.schedules import SCHEDULES
from tests.strategies.planning.dry_run.jobs import job


def lines(position: int, *args: int, **options: object) -> list[str]:
    found = programs_of(job(*args, **options))[position]  # type: ignore[arg-type]
    return [f"{each.kind.value} {each.what}" for each in found]


def test_two_stages() -> None:
    assert lines(0, 1, 2, num_microbatches=2) == [
        "compute 0F0",
        "send activations after 0F0",
        "compute 0F1",
        "send activations after 0F1",
        "receive gradients after 1B0",
        "compute 0B0",
        "receive gradients after 1B1",
        "compute 0B1",
        "send gradients of the table of tokens at position 0",
        "receive gradients of the table of tokens at position 1",
        "compute update",
    ]
    assert lines(1, 1, 2, num_microbatches=2) == [
        "receive activations after 0F0",
        "receive activations after 0F1",
        "compute 1F0",
        "compute 1B0",
        "send gradients after 1B0",
        "compute 1F1",
        "compute 1B1",
        "send gradients after 1B1",
        "receive gradients of the table of tokens at position 0",
        "send gradients of the table of tokens at position 1",
        "compute update",
    ]


def test_one_stage_computes_one_micro_batch_after_the_other() -> None:
    assert lines(0, num_microbatches=2) == [
        "compute 0F0",
        "compute 0B0",
        "compute 0F1",
        "compute 0B1",
        "compute update",
    ]


@pytest.mark.parametrize("schedule", SCHEDULES)
@pytest.mark.parametrize(("pipe", "number"), [(2, 4), (3, 6), (4, 4)])
def test_messages_of_all_stages(schedule: str, pipe: int, number: int) -> None:
    made = job(1, pipe, num_microbatches=number, schedule=schedule)
    sent: Counter[str] = Counter()
    for program in programs_of(made):
        sent.update(
            each.what.split()[0] for each in program if each.kind is OperationKind.SEND and "table" not in each.what
        )
    devices = [made.schedule.device_of(stage) for stage in range(made.schedule.num_stages)]
    cuts = sum(one != other for one, other in itertools.pairwise(devices))
    assert sent == {"activations": cuts * number, "gradients": cuts * number}
