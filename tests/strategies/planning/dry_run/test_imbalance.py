"""Planted imbalances are found."""

from __future__ import annotations

import pytest

from strategies.planning.dry_run.imbalance import imbalances, most_even_stages
from strategies.planning.step_bytes import activation_bytes_of_layers
from tests.strategies.planning.dry_run.jobs import dry_run, job


def test_equal_stages_are_even() -> None:
    assert dry_run(4, 1, 2).imbalances == ()


def test_a_stage_with_twice_the_blocks() -> None:
    run = dry_run(1, 3, stages=(3, 6, 3), num_microbatches=24)
    [work, advice, *_] = run.imbalances
    assert work.startswith("Position 1 along 'pipe' computes 1.")
    assert work.endswith("6 blocks. The others wait for it.")
    assert advice == "The most even stages are --stages=4,4,4."
    idle = [each.idle for each in run.positions]
    assert idle[0] > 0.4
    assert idle[1] == min(idle) < 0.15


def test_blocks_that_do_not_divide_and_logits() -> None:
    run = dry_run(1, 2, stages=(4, 8))
    assert any("8 blocks and the logits" in each for each in run.imbalances)


def test_memory_of_the_first_stage() -> None:
    run = dry_run(1, 4, num_microbatches=8, microbatch_size=8)
    found = [each for each in run.imbalances if "holds" in each]
    assert "Position 0 along 'pipe' holds" in found[0]
    assert "activations of 4 forward passes" in found[0]


def test_hosts_that_send_more() -> None:
    [found] = imbalances(job(4, 1, 2), dry_run(4, 1, 2).positions, {0: 9e9, 1: 1e9})
    assert found == "Host 0 sends 9.0 GB to others, 1.80 times the mean of the hosts that send."


def test_layers_split_over_hosts() -> None:
    assert any("crosses hosts" in each for each in dry_run(1, 1, 2, host_size=1).imbalances)


@pytest.mark.parametrize("pipe", [1, 2, 3, 4, 6])
def test_the_most_even_stages(pipe: int) -> None:
    even = most_even_stages(job(1, pipe))
    assert len(even) == pipe
    assert sum(even) == 12
    assert even[-1] <= min(even[:-1], default=12)


@pytest.mark.parametrize(("pipe", "chunks"), [(4, 1), (4, 3), (3, 2), (2, 2), (2, 3)])
def test_activations_are_those_of_the_planner(pipe: int, chunks: int) -> None:
    run = dry_run(1, pipe, num_microbatches=12, num_chunks=chunks)
    expected = activation_bytes_of_layers(run.job.model, run.job.layout)
    assert run.positions[0].activation_bytes == pytest.approx(expected)
    # Of a forward pass for each chunk.
    assert run.positions[0].num_held == chunks * pipe + (pipe - 1 if chunks > 1 else 0)
