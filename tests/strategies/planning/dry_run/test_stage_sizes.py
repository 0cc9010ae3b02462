"""The sizes of stages add up to those of the model."""

from __future__ import annotations

import pytest

from strategies.planning.dry_run.stage_sizes import StageSizes
from tests.strategies.planning.dry_run.jobs import MODEL, job


@pytest.mark.parametrize(("pipe", "schedule"), [(1, None), (2, None), (3, "interleaved_1f1b"), (2, "zb_v")])
def test_parameters_and_operations_are_those_of_the_model(pipe: int, schedule: str | None) -> None:
    made = job(1, pipe, schedule=schedule)
    stages = [StageSizes(made, stage) for stage in range(len(made.stages))]
    table = MODEL.vocabulary_size * MODEL.hidden_size
    # The first and the last stage of a V are on one position.
    copies = 1 if pipe > 1 and schedule != "zb_v" else 0
    assert [each.has_copied_table for each in stages] == [bool(copies)] * len(stages)
    assert sum(each.parameters for each in stages) == MODEL.num_parameters + copies * table
    work = 3 * sum(each.forward_work for each in stages) * made.num_microbatches
    assert work == pytest.approx(MODEL.flops(made.batch_size))


def test_shards_of_layers_divide_all_but_normalizations_and_biases_of_outputs() -> None:
    whole, half = (StageSizes(job(1, 1, tensor), 0) for tensor in (1, 2))
    replicated = MODEL.num_layers * 6 * MODEL.hidden_size
    assert 2 * half.parameters - whole.parameters == replicated
    assert 2 * half.forward_work == pytest.approx(whole.forward_work)


def test_shard_divides_the_state() -> None:
    number = StageSizes(job(), 0).parameters
    found = [StageSizes(job(4, shard=shard), 0).state_bytes for shard in (None, "optimizer", "weights")]
    assert found == [18 * number, 12 * number, 4.5 * number]
