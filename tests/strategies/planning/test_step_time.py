"""Times of a step, against published ones, and what must hold for any model."""

from __future__ import annotations

import dataclasses
import itertools

import pytest

from strategies.planning import Experts, Layout, Lora, Transformer, gpu_of, step_time
from strategies.planning.bubble import bubble_passes
from strategies.planning.layout import ScheduleName
from strategies.schedules import SCHEDULES, Kind
from tests.strategies.planning.published import LATER_TIMES, TIMES, Row
from tests.strategies.planning.validate import error_of

A100 = gpu_of("A100")
MODEL = Transformer(24, 2048, 16)


@pytest.mark.parametrize("row", TIMES, ids=lambda row: f"{row.model.num_parameters / 1e9:.0f}e9")
def test_published_times_are_predicted(row: Row) -> None:
    assert abs(error_of(row)) < 0.05
    if row.is_fitted:
        assert abs(error_of(row)) < 0.005


@pytest.mark.parametrize("row", LATER_TIMES, ids=lambda row: f"{row.model.num_parameters / 1e9:.0f}e9")
def test_times_of_a_later_paper_are_predicted_by_the_same_constants(row: Row) -> None:
    assert abs(error_of(row)) < 0.08


def test_published_sizes() -> None:
    found = [round(row.model.num_parameters / 1e9, 1) for row in TIMES]
    assert found == [1.7, 3.6, 7.5, 18.4, 39.1, 76.1, 145.6, 310.1, 529.6, 1008.0]
    # Three constants, and three rows for them.
    assert sum(row.is_fitted for row in TIMES) == 3
    assert not any(row.is_fitted for row in LATER_TIMES)
    assert [row.layout.num_microbatches(row.batch_size) for row in TIMES] == [1, 1, 1, 4, 12, 28, 48, 144, 280, 512]


def test_parts_that_do_not_exist_cost_nothing() -> None:
    time = step_time(MODEL, Layout(), 8, A100).parts()
    assert {name for name, seconds in time.items() if seconds == 0} == {
        "recompute",
        "tensor",
        "experts",
        "messages",
        "offload",
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


@pytest.mark.parametrize("schedule", ["1f1b", "zb_h1", "zb_v", "v_half"])
@pytest.mark.parametrize(("devices", "microbatches"), [(1, 4), (2, 2), (4, 4), (4, 30), (8, 16)])
def test_the_bubble_is_that_of_the_schedule_s_table(schedule: ScheduleName, devices: int, microbatches: int) -> None:
    table = SCHEDULES[schedule](devices, microbatches)
    ticks = {Kind.FORWARD: 1, Kind.BACKWARD: 2, Kind.BACKWARD_INPUT: 1, Kind.BACKWARD_WEIGHT: 1}
    length = max(end for _, end in table.times(lambda action: ticks.get(action.kind, 0)).values())
    busy = 3 * microbatches * table.num_stages / devices
    expected = (length - busy) / (3 * table.num_stages / devices)
    assert bubble_passes(schedule, devices, 1, microbatches) == pytest.approx(expected)


def test_zero_bubble_schedules_wait_less() -> None:
    times = {
        each: step_time(MODEL, Layout(num_stages=4, schedule=each), 16, A100) for each in ("1f1b", "zb_h1", "zb_v")
    }
    assert times["zb_h1"].bubble == pytest.approx(times["1f1b"].bubble / 3, rel=1e-6)
    assert times["zb_v"].bubble < times["zb_h1"].bubble
    assert times["zb_v"].messages == pytest.approx(2 * times["1f1b"].messages)


def test_experts_cost_what_computes_a_token_and_its_messages() -> None:
    dense = step_time(MODEL, Layout(4), 16, A100)
    one = step_time(dataclasses.replace(MODEL, experts=Experts(8, top_k=1)), Layout(4), 16, A100)
    two = step_time(dataclasses.replace(MODEL, experts=Experts(8, top_k=2)), Layout(4), 16, A100)
    assert one.layers == pytest.approx(dense.layers, rel=1e-9)
    assert 1.4 < two.layers / dense.layers < 5 / 3
    assert one.experts == two.experts == 0
    divided = step_time(dataclasses.replace(MODEL, experts=Experts(8)), Layout(1, num_expert=4), 16, A100)
    assert divided.layers == two.layers
    assert divided.experts > 0
    # Gradients of experts stay on their devices.
    slow = dataclasses.replace(A100, host_bytes_per_second=1e9)
    spread, whole = (
        step_time(dataclasses.replace(MODEL, experts=Experts(8)), layout, 16, slow).gradients
        for layout in (Layout(1, num_expert=4), Layout(4))
    )
    assert spread < whole / 2


def test_adapters_leave_out_gradients_of_frozen_weights() -> None:
    lora = dataclasses.replace(MODEL, lora=Lora(8))
    whole, found = (step_time(model, Layout(4), 16, A100) for model in (MODEL, lora))
    # The scores of attention have no weights.
    assert 0.7 < found.layers / whole.layers < 0.9
    assert found.update < whole.update / 100
    assert found.gradients <= whole.gradients


def test_offloading_waits_only_for_a_slow_link() -> None:
    layout = Layout(recompute="full", offload=True)
    assert step_time(MODEL, layout, 8, A100).offload == 0
    assert step_time(MODEL, layout, 8, dataclasses.replace(A100, offload_bytes_per_second=1e8)).offload > 0


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


def test_shards_of_accumulated_gradients_are_exchanged_in_each_micro_batch() -> None:
    slow = dataclasses.replace(A100, host_bytes_per_second=1e8)
    one, four = (
        step_time(MODEL, Layout(4, microbatch_size=size, shard="optimizer"), 32, slow).gradients for size in (8, 2)
    )
    assert 2 < four / one < 4
    replicated = [step_time(MODEL, Layout(4, microbatch_size=size), 32, slow).gradients for size in (8, 2)]
    assert replicated[1] < 1.2 * replicated[0]


def test_batches_that_do_not_divide_are_refused() -> None:
    with pytest.raises(ValueError, match=r"multiple of the rows that 4 replicas compute at a time, 8.*batch_size=12"):
        step_time(MODEL, Layout(4, microbatch_size=2), 12, A100)
    with pytest.raises(ValueError, match=r"multiple of the number of heads. Received: hidden_size=100, num_heads=7"):
        Transformer(2, 100, 7)
    with pytest.raises(ValueError, match=r"whole numbers from 1. Received: .*'num_layers': 0"):
        Transformer(0, 8, 1)
    with pytest.raises(ValueError, match=r"1 to all experts. Received: num=2, top_k=3"):
        Experts(2, 3)
    with pytest.raises(ValueError, match=r"1, 2 or 4 bytes. Received: rank=4, frozen_bytes=3"):
        Lora(4, 3)
    with pytest.raises(ValueError, match=r"offload needs recompute='full'. Received: recompute=None"):
        Layout(offload=True)
    with pytest.raises(ValueError, match=r"recompute='full', num_stages=2"):
        Layout(num_stages=2, recompute="full", offload=True)
    with pytest.raises(ValueError, match=r"sizes of a layout are at least 1. Received: .*microbatch_size=0"):
        Layout(microbatch_size=0)
    with pytest.raises(ValueError, match=r"Chunks belong to the schedule '1f1b'. Received: schedule='zb_v'"):
        Layout(schedule="zb_v", num_chunks=2)
    with pytest.raises(ValueError, match=r"The known GPUs are A100, H100, .*Received: gpu='T4', network=None"):
        gpu_of("T4")
