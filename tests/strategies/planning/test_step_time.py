"""Times of a step, against published ones, and what must hold for any model."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from strategies.planning import Layout, Transformer, gpu_of, step_time
from tests.strategies.planning.published import NUM_FITTED, TIMES, Row
from tests.strategies.planning.validate import error_of

A100 = gpu_of("A100")
MODEL = Transformer(24, 2048, 16)


@pytest.mark.parametrize("row", TIMES, ids=lambda row: f"{row.model.num_parameters / 1e9:.0f}e9")
def test_published_times_are_predicted(row: Row) -> None:
    assert abs(error_of(row)) < 0.05
    if row in TIMES[:NUM_FITTED]:
        assert abs(error_of(row)) < 0.005


def test_published_sizes() -> None:
    found = [round(row.model.num_parameters / 1e9, 1) for row in TIMES]
    assert found == [1.7, 3.6, 7.5, 18.4, 39.1, 76.1, 145.6, 310.1, 529.6, 1008.0]
    assert [row.layout.num_microbatches(row.batch_size) for row in TIMES] == [1, 1, 1, 4, 12, 28, 48, 144, 280, 512]


def test_parts_that_do_not_exist_cost_nothing() -> None:
    time = step_time(MODEL, Layout(), 8, A100).parts()
    assert {name for name, seconds in time.items() if seconds == 0} == {
        "recompute",
        "tensor",
        "messages",
        "bubble",
        "gradients",
    }


def test_a_bubble_shrinks_with_micro_batches_and_chunks() -> None:
    def fraction(batch_size: int, chunks: int) -> float:
        time = step_time(MODEL, Layout(num_stages=4, num_chunks=chunks), batch_size, A100)
        return time.bubble / (time.layers + time.messages)

    # (p - 1) / m, divided by the chunks; the messages of chunks are more.
    assert fraction(16, 1) == pytest.approx(3 / 16, rel=1e-6)
    assert fraction(64, 1) == pytest.approx(3 / 64, rel=1e-6)
    assert fraction(16, 3) == pytest.approx(3 / 16 / 3, rel=1e-6)


def test_recomputing_costs_time_in_proportion() -> None:
    times = [step_time(MODEL, Layout(recompute=each), 8, A100) for each in (None, "selective", "full")]
    assert times[0].total < times[1].total < times[2].total
    assert times[2].recompute < times[2].layers / 2


def test_faster_links_and_more_devices_are_never_slower() -> None:
    for layout in (Layout(16, 1, 1), Layout(2, 4, 2), Layout(1, 2, 8), Layout(2, 1, 8, shard="weights")):
        rates = [
            step_time(MODEL, layout, 64, gpu_of("A100", network)).total
            for network in ("ethernet-100", "infiniband-hdr", "infiniband-ndr", "infiniband-xdr")
        ]
        assert all(slower >= faster for slower, faster in itertools.pairwise(rates))
    wider = [step_time(MODEL, Layout(data), 64, A100).total for data in (1, 2, 4, 8)]
    assert wider == sorted(wider, reverse=True)
    # Sharded weights are gathered more often than gradients are summed.
    slow = dataclasses.replace(A100, network_bytes_per_second=1e8)
    times = [step_time(MODEL, Layout(16, shard=each), 64, slow).gradients for each in (None, "weights")]
    assert times[0] < times[1]


def test_batches_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of the rows that 4 replicas compute at a time, 8.*batch_size=12"):
        step_time(MODEL, Layout(4, microbatch_size=2), 12, A100)
    with pytest.raises(ValueError, match=r"multiple of the number of heads. Received: hidden_size=100, num_heads=7"):
        Transformer(2, 100, 7)
    with pytest.raises(ValueError, match=r"whole numbers from 1. Received: .*'num_layers': 0"):
        Transformer(0, 8, 1)
    with pytest.raises(ValueError, match=r"The known GPUs are A100, H100, .*Received: gpu='T4', network=None"):
        gpu_of("T4")
