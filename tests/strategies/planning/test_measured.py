"""Steps of measured models on meshes, in literal numbers."""

from __future__ import annotations

import dataclasses

import pytest

from strategies.planning import (
    LayerShare,
    Linear,
    Link,
    MeasuredLayout,
    MeasuredStep,
    gpu_of,
    measured_search,
    measured_seconds,
)

#: Four equal layers of 1 MB; a pass of all takes 4 ms and 1 ms for each row.
LAYERS = [LayerShare(f"layer_{k}", 0.25, 1e6, split_share=1.0, reduced_bytes=1e3, output_bytes=1e3) for k in range(4)]
STEP = MeasuredStep(LAYERS, Linear(0.004, 0.001), Linear(0.002, 0.0), 0.008, 1e9)


def total(step: MeasuredStep, layout: MeasuredLayout, batch_size: int = 64) -> float:
    return sum(measured_seconds(step, layout, batch_size).values())


def test_one_device() -> None:
    assert measured_seconds(STEP, MeasuredLayout(), 64) == pytest.approx(
        {"layers": 0.068, "bubble": 0, "tensor": 0, "experts": 0, "rest": 0.002, "gradients": 0, "update": 0.008}
    )
    assert total(STEP, MeasuredLayout(recompute=True)) == pytest.approx(0.068 * 4 / 3 + 0.01)


def test_replicas_exchange_gradients_and_share_the_update() -> None:
    two = measured_seconds(STEP, MeasuredLayout(2), 64)
    assert two["layers"] == pytest.approx(0.036)
    assert two["gradients"] == pytest.approx(4e6 / 1e9)
    assert measured_seconds(STEP, MeasuredLayout(2, shard="optimizer"), 64)["update"] == pytest.approx(0.004)
    assert measured_seconds(STEP, MeasuredLayout(2, shard="weights"), 64)["gradients"] == pytest.approx(6e6 / 1e9)
    linked = dataclasses.replace(STEP, links={"data": Link(0.001, 1e8)})
    # The part that overlaps with the backward pass is not counted.
    assert measured_seconds(linked, MeasuredLayout(2), 64)["gradients"] == pytest.approx(0.001 + 0.04 - 0.024)


def test_shards_divide_what_depends_on_rows() -> None:
    two = measured_seconds(STEP, MeasuredLayout(num_tensor=2), 64)
    assert two["layers"] == pytest.approx(0.004 + 0.032)
    assert two["tensor"] == pytest.approx(4 * 64 * 1e3 / 1e9)
    assert two["update"] == pytest.approx(0.004)


def test_experts_are_divided_with_the_rows() -> None:
    mixture = LayerShare("mixture", 0.5, 2e6, expert_bytes=1.8e6, routed_bytes=4e3, num_experts=4)
    step = dataclasses.replace(STEP, layers=[*LAYERS[:2], mixture])
    replicas, experts = (
        measured_seconds(step, layout, 64) for layout in (MeasuredLayout(2), MeasuredLayout(1, num_expert=2))
    )
    assert experts["layers"] == replicas["layers"]
    assert experts["experts"] == pytest.approx(32 * 4e3 / 2 / 1e9)
    assert experts["update"] == pytest.approx(replicas["update"] * (4e6 - 0.9e6) / 4e6)
    best = measured_search(step, 64, 4, lambda layout: 1).best
    [divided] = [each for each in best if each.layout.num_expert == 4]
    assert divided.layout.mesh == {"data": 1, "expert": 4, "pipe": 1, "tensor": 1}
    assert divided.num_ways > 0


def test_stages_wait_as_their_schedule_says() -> None:
    step = dataclasses.replace(STEP, add_bytes_per_second=1e15)
    parts = measured_seconds(step, MeasuredLayout(num_stages=2, num_microbatches=4), 64)
    # A pass of a stage takes (4 + 16) / 2 ms; 1F1B takes (m + p - 1) of them.
    assert parts["layers"] == pytest.approx(4 * 0.010)
    assert parts["bubble"] == pytest.approx(0.010, rel=1e-3)
    assert parts["update"] == pytest.approx(0.004)
    zero = measured_seconds(step, MeasuredLayout(num_stages=2, num_microbatches=4, schedule="zb_h1"), 64)
    assert zero["bubble"] == pytest.approx(0.010 / 3, rel=1e-3)
    # A message takes 1 ms, and two of four micro-batches are under way: there are two round trips of two messages.
    layout = MeasuredLayout(num_stages=2, num_microbatches=4)
    aside = measured_seconds(dataclasses.replace(step, links={"pipe": Link(0.001, 1e15)}), layout, 64)
    assert aside["bubble"] == pytest.approx(0.010 + 4 * 0.001, rel=1e-3)
    # Each of the ten passes on the critical path takes the processor for its message, too.
    link = Link(0.001, 1e15, processor_share=1.0)
    within = measured_seconds(dataclasses.replace(step, links={"pipe": link}), layout, 64)
    assert within["bubble"] - aside["bubble"] == pytest.approx(10 * 0.001, rel=1e-3)


def test_devices_that_share_cores_are_slower() -> None:
    shared = dataclasses.replace(STEP, slowdowns=(1.0, 1.5))
    assert shared.slowdown(2) == 1.5
    assert shared.slowdown(4) == 2.5
    assert measured_seconds(shared, MeasuredLayout(2), 64)["layers"] == pytest.approx(1.5 * 0.036)


def test_on_other_devices_rows_are_faster() -> None:
    a100 = gpu_of("A100")
    step = dataclasses.replace(STEP, slowdowns=(1.0, 2.0)).on(
        a100, a100.flops_per_second / 100, num_devices=16, host_size=8
    )
    assert (step.passes.fixed, step.passes.of_row) == pytest.approx((0.004, 0.001 / 100))
    assert step.slowdown(2) == 1
    assert step.link("data").bytes_per_second == a100.network_bytes_per_second
    assert step.link("tensor").bytes_per_second == a100.host_bytes_per_second
    link = Link.from_rates({"latency in microseconds": 100, "GB/s": {"10 MB": 2, "0.1 MB": 0.1}})
    assert (link.seconds, link.bytes_per_second) == pytest.approx((1e-4, 2e9))


def test_a_line_through_times_has_no_negative_part() -> None:
    line = Linear.through([(8, 0.012), (16, 0.020), (32, 0.036)])
    assert (line.fixed, line.of_row) == pytest.approx((0.004, 0.001))
    for points in ([(8, 0.010), (16, 0.030)], [(8, 0.02), (16, 0.01)], [(8, 0.01)]):
        line = Linear.through(points)
        assert min(line.fixed, line.of_row) >= 0


def test_a_search_prefers_what_is_simple_and_fits() -> None:
    found = measured_search(STEP, 64, 2, lambda layout: 100)
    meshes = [tuple(each.layout.mesh.values()) for each in found.best]
    assert sorted(meshes) == [(1, 1, 2), (1, 2, 1), (2, 1, 1)]
    assert [each.seconds for each in found.best] == sorted(each.seconds for each in found.best)
    # Only half of the model fits.
    small = measured_search(STEP, 64, 2, lambda layout: 100 // (layout.num_stages * layout.num_tensor), device_bytes=60)
    assert all(each.layout.num_data == 1 for each in small.best)
    assert small.refused["needs more memory than a device has"] > 0
    assert measured_search(STEP, 64, 2, lambda layout: 100, device_bytes=60).best == ()
    whole = dataclasses.replace(STEP, layers=[dataclasses.replace(each, split_share=0.0) for each in LAYERS])
    refused = measured_search(whole, 63, 8, lambda layout: 1).refused
    assert {"splits layers, of which none can be split", "has more stages than layers"} <= set(refused)
    assert "has rows that do not divide among replicas" in refused


def test_exchanges_that_take_the_processor_do_not_overlap() -> None:
    link = Link.from_rates(
        {"latency in microseconds": 1000, "GB/s": {"1 MB": 0.5, "4 MB": 1.0}, "processor share": 0.8}
    )
    # The times of 0, 1 and 4 MB are 1, 2 and 4 ms; beyond, the last rate counts.
    assert link.exchange_seconds(0.5e6) == pytest.approx(0.0015)
    assert link.exchange_seconds(6e6, 3) == pytest.approx(3 * (0.002 + 0.002 / 3))
    assert link.exchange_seconds(8e6) == pytest.approx(0.008)
    assert link.exchange_seconds(0.0, 0) == 0
    step = dataclasses.replace(STEP, links={"data": link})
    assert measured_seconds(step, MeasuredLayout(2), 64)["gradients"] == pytest.approx(0.8 * 0.004)


def test_zero_bubble_pays_for_passes_in_halves() -> None:
    layout = MeasuredLayout(num_stages=2, num_microbatches=4, schedule="zb_h1")
    whole, halves = (
        sum(measured_seconds(dataclasses.replace(STEP, halves=times), layout, 64).values()) for times in (1.0, 1.1)
    )
    # Each of the two devices computes four micro-batches of half of the model.
    assert halves - whole == pytest.approx(0.1 * 4 * (0.004 + 16 * 0.001) / 2, rel=0.2)
    one_f_one_b = dataclasses.replace(layout, schedule="1f1b")
    assert measured_seconds(dataclasses.replace(STEP, halves=1.1), one_f_one_b, 64) == measured_seconds(
        STEP, one_f_one_b, 64
    )
