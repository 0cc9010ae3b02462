"""The collectives of a stage's passes."""

from __future__ import annotations

import pytest

from strategies.planning.dry_run.operations import OperationKind
from strategies.planning.dry_run.passes import operations_of, work_of
from strategies.planning.dry_run.stage_sizes import StageSizes
from strategies.schedules import Action, Kind
from tests.strategies.planning.dry_run.jobs import job

SUM, GATHER, SCATTER = OperationKind.ALL_REDUCE, OperationKind.ALL_GATHER, OperationKind.REDUCE_SCATTER


def kinds(kind: Kind, stage: int, **options: object) -> list[OperationKind]:
    sizes = StageSizes(job(1, 3, 2, stages=(1, 2, 9), **options), stage)  # type: ignore[arg-type]
    return [each.kind for each in operations_of(Action(stage, kind, 0), sizes)][1:]


def test_all_reduces() -> None:
    assert kinds(Kind.FORWARD, 0) == [SUM, SUM, SUM, SUM]
    assert kinds(Kind.FORWARD, 1) == [SUM] * 4
    assert kinds(Kind.BACKWARD, 1) == [SUM] * 4
    assert kinds(Kind.BACKWARD_INPUT, 1) == [SUM] * 4
    assert kinds(Kind.BACKWARD_WEIGHT, 1) == []
    assert kinds(Kind.FORWARD, 2) == [SUM] * 18 + [GATHER]
    assert kinds(Kind.BACKWARD, 2) == [SUM] * 19


def test_recomputation_runs_the_collectives_again() -> None:
    assert kinds(Kind.FORWARD, 1, recompute="full") == [SUM] * 4
    assert kinds(Kind.BACKWARD, 1, recompute="full") == [SUM] * 8
    sizes = StageSizes(job(1, 3, recompute="full"), 1)
    assert [work_of(Action(1, kind, 0), sizes) / sizes.forward_work for kind in (Kind.FORWARD, Kind.BACKWARD)] == [1, 3]


@pytest.mark.parametrize(("kind", "factor"), [("FORWARD", 1), ("BACKWARD", 2), ("BACKWARD_INPUT", 1)])
def test_work(kind: str, factor: int) -> None:
    sizes = StageSizes(job(1, 3), 2)
    assert work_of(Action(2, Kind[kind], 0), sizes) == factor * sizes.forward_work


def test_without_shards_there_are_no_collectives() -> None:
    sizes = StageSizes(job(1, 3), 2)
    for kind in (Kind.FORWARD, Kind.BACKWARD):
        assert [each.kind for each in operations_of(Action(2, kind, 0), sizes)] == [OperationKind.COMPUTE]


def test_sequence_parallelism_gets_and_returns_whole_sequences() -> None:
    forward = [SCATTER, GATHER, SCATTER, GATHER, SCATTER, GATHER, SCATTER, GATHER]
    assert kinds(Kind.FORWARD, 1, sequence_parallel=True) == forward
    of_part = [GATHER, SUM, SCATTER, SUM, SUM]
    backward = [*of_part * 3, GATHER, GATHER, SUM, SUM]
    assert kinds(Kind.BACKWARD, 1, sequence_parallel=True) == backward
