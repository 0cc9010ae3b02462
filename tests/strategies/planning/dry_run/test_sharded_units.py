"""Buckets and units hold all weights of a rank."""

from __future__ import annotations

from dataclasses import replace

import pytest

from strategies.planning.dry_run.sharded_units import gradient_buckets, weight_units
from strategies.planning.dry_run.stage_sizes import StageSizes
from strategies.planning.held_bytes import UNIT_BYTES, Weight, units_of
from tests.strategies.planning.dry_run.jobs import job


@pytest.mark.parametrize("bucket_bytes", [2**10, 2**16, 2**25])
@pytest.mark.parametrize("shard", [None, "optimizer", "weights"])
@pytest.mark.parametrize(("pipe", "tensor"), [(1, 1), (1, 2), (3, 1)])
def test_all_weights_are_in_buckets_and_units(pipe: int, tensor: int, shard: str | None, bucket_bytes: int) -> None:
    made = replace(job(2, pipe, tensor, shard=shard), bucket_bytes=bucket_bytes)
    for stage in range(pipe):
        sizes = StageSizes(made, stage)
        assert sum(gradient_buckets(made, [sizes])) == 4 * sizes.parameters
        units = weight_units(made, [sizes])
        assert sum(each.num_bytes for each in units) == 4 * sizes.parameters
        assert sorted(each.first_use for each in units)[0] == 0


def test_units_of_replicas_are_those_of_the_planner() -> None:
    made = replace(job(2, shard="weights"), bucket_bytes=UNIT_BYTES)
    sizes = StageSizes(made, 0)
    found = [(each.num_bytes, each.is_small) for each in weight_units(made, [sizes])]
    assert found == [
        (each.num_bytes, each.is_small) for each in units_of([Weight(4 * w.parameters) for w in sizes.weights])
    ]


def test_units_of_biases_are_not_read_in_the_backward_pass() -> None:
    made = replace(job(2, shard="weights"), bucket_bytes=4 * 64 * 64)
    found = weight_units(made, [StageSizes(made, 0)])
    # The kernel that comes before the bias of the hidden units, and the one after it, have units of their own.
    biases = [each for each in found if each.num_bytes == 4 * 4 * 64]
    assert len(biases) == 12
    assert not any(each.in_backward for each in biases)
    assert all(each.in_backward for each in found if each.num_bytes > 4 * 4 * 64 and each.first_part[1] != "tables")
