"""The exchange of replicas: bytes by closed formulas, and the order."""

from __future__ import annotations

from collections import Counter
from dataclasses import replace

import pytest

from strategies.planning.dry_run.operations import Operation, OperationKind
from strategies.planning.dry_run.programs import programs_of
from strategies.planning.dry_run.stage_sizes import StageSizes
from tests.strategies.planning.dry_run.jobs import job


def exchanges(data: int, **options: object) -> tuple[list[Operation], float]:
    """Returns the operations along "data" of a job with small buckets, and the bytes of all weights."""
    made = replace(job(data, **options), bucket_bytes=2**18)  # type: ignore[arg-type]
    [program] = programs_of(made)
    return [each for each in program if each.axis == "data"], 4.0 * StageSizes(made, 0).parameters


@pytest.mark.parametrize("data", [2, 3, 8])
def test_bytes_sent(data: int) -> None:
    part = (data - 1) / data
    sums, size = exchanges(data)
    assert {each.kind for each in sums} == {OperationKind.ALL_REDUCE}
    assert len(sums) > 5
    assert sum(each.bytes_sent(data) for each in sums) == pytest.approx(2 * part * size)
    for shard in ("optimizer", "gradients"):
        parts, _ = exchanges(data, shard=shard, num_microbatches=1)
        assert sum(each.bytes_sent(data) for each in parts) == pytest.approx(2 * part * size, rel=1e-3)
        assert [each.num_bytes for each in parts[: len(sums)]] == [each.num_bytes for each in parts[len(sums) :]]


def test_accumulated_gradients() -> None:
    """Whole sums are all-reduced once; shards of gradients are reduced in each micro-batch."""
    assert len(exchanges(2, num_microbatches=3)[0]) == len(exchanges(2, num_microbatches=1)[0])
    kinds = Counter(each.kind for each in exchanges(2, shard="optimizer", num_microbatches=3)[0])
    assert kinds[OperationKind.REDUCE_SCATTER] == 3 * kinds[OperationKind.ALL_GATHER]


def test_sharded_weights_are_gathered_for_each_pass() -> None:
    found, size = exchanges(2, shard="weights", num_microbatches=3)
    once = found[: len(found) // 3]
    assert [each.kind for each in once] == [each.kind for each in found[len(once) :]][: len(once)]
    scattered = [each for each in once if each.kind is OperationKind.REDUCE_SCATTER]
    assert sum(each.num_bytes for each in scattered) == pytest.approx(size, rel=1e-3)
    number = len(scattered)
    # All units for the forward pass. The last two large ones and the small one are still there for the backward pass,
    # which does not read units of biases.
    assert [each.kind for each in once[:number]] == [OperationKind.ALL_GATHER] * number
    again = [each for each in once[number:] if each.kind is OperationKind.ALL_GATHER]
    assert number // 2 < len(again) <= number - 3
    assert once[number].kind is OperationKind.REDUCE_SCATTER


def test_one_replica_exchanges_nothing() -> None:
    for shard in (None, "optimizer", "weights"):
        assert exchanges(1, shard=shard)[0] == []


def test_a_pipeline_gathers_weights_once() -> None:
    made = job(2, 2, shard="weights")
    for program in programs_of(made):
        names = [each.what.partition(" for ")[0] for each in program if each.what.startswith("weights of unit")]
        assert names
        assert len(names) == len(set(names))
