"""The time of a step of any model, from the measured times of its layers. Pure.

A step on one device is split into what each part of it costs: the passes of the layers, the loss and the metrics, the
update, and what does not depend on the rows. From these, and the speed of the links, follows the step on a mesh.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace

from strategies.planning.measured_step import LayerShare, MeasuredLayout, MeasuredStep
from strategies.planning.shared_devices import schedule_seconds
from strategies.schedules import SCHEDULES, Action, Cost, Kind
from strategies.schedules.partition import balanced

# A backward pass computes twice as much as a forward pass; each half of a split one as much.
_PARTS_OF_PASSES = {
    Kind.FORWARD: 1 / 3,
    Kind.BACKWARD: 2 / 3,
    Kind.BACKWARD_INPUT: 1 / 3,
    Kind.BACKWARD_WEIGHT: 1 / 3,
}


def measured_seconds(step: MeasuredStep, layout: MeasuredLayout, batch_size: int) -> dict[str, float]:
    """Returns the seconds of a step on a mesh, by part.

    Args:
        step: the measured model.
        layout: the mesh.
        batch_size: rows of the global batch.
    """
    rows = -(-batch_size // layout.num_replicas)
    busy = step.slowdown(layout.num_devices)
    if layout.num_stages == 1:
        parts = {"layers": busy * _layer_seconds(step, layout, rows), "bubble": 0.0}
        held = _bytes_of(step.layers, layout)
        parts["tensor"] = _tensor_seconds(step, step.layers, layout, rows)
        parts["experts"] = _expert_seconds(step, step.layers, layout, rows)
    else:
        parts, held = _pipeline_seconds(step, layout, rows)
    parts["gradients"] = _gradient_seconds(step, layout, held, parts["layers"])
    divided = layout.num_data if layout.shard else 1
    parts["update"] = busy * step.update * held / step.num_bytes / divided if step.num_bytes else 0.0
    # One device of each replica computes its loss.
    parts["rest"] = step.rest.fixed + step.slowdown(layout.num_replicas) * step.rest.of_row * rows
    return parts


def _layer_seconds(step: MeasuredStep, layout: MeasuredLayout, rows: float) -> float:
    """Returns the seconds of all passes of a replica whose layers are split, on a device that computes alone."""
    again = 4 / 3 if layout.recompute else 1.0
    split = sum(layer.share * layer.split_share for layer in step.layers)
    # A shard's operations have the same fixed cost.
    of_row = step.passes.of_row * (1 - split + split / layout.num_tensor)
    return again * (step.passes.fixed + rows * of_row)


def _tensor_seconds(step: MeasuredStep, layers: Sequence[LayerShare], layout: MeasuredLayout, rows: float) -> float:
    """Returns the seconds of the exchanges between shards of layers."""
    if layout.num_tensor == 1:
        return 0.0
    exchanging = [layer for layer in layers if layer.reduced_bytes]
    return sum(
        step.link("tensor").exchange_seconds(layer.reduced_bytes * rows, layer.num_exchanges) for layer in exchanging
    )


def _expert_seconds(step: MeasuredStep, layers: Sequence[LayerShare], layout: MeasuredLayout, rows: float) -> float:
    """Returns the seconds of the exchanges between experts: two in each pass of a mixture."""
    if layout.num_expert == 1:
        return 0.0
    away = (layout.num_expert - 1) / layout.num_expert
    return sum(
        step.link("expert").exchange_seconds(away * layer.routed_bytes * rows, 4)
        for layer in layers
        if layer.num_experts
    )


def _bytes_of(layers: Sequence[LayerShare], layout: MeasuredLayout) -> float:
    """Returns the bytes of the trained weights of some layers on a device."""
    found = 0.0
    for layer in layers:
        whole = layer.num_bytes - layer.expert_bytes * (1 - 1 / layout.num_expert)
        found += whole * (1 - layer.split_share + layer.split_share / layout.num_tensor)
    return found


def _gradient_seconds(step: MeasuredStep, layout: MeasuredLayout, held: float, layers_seconds: float) -> float:
    """Returns the seconds of the exchanges between replicas, apart from what overlaps with the backward pass.

    Exchanges between processes overlap, if there is one stage, apart from the time in which they take the processor
    that computes. Devices of one process exchange by additions, which take the cores that compute.

    The rate of a link is that of a whole all-reduce, so each half of it, a reduce-scatter or an all-gather, takes half.
    """
    if layout.num_replicas == 1:
        return 0.0
    # Reduce-scatter and all-gather; sharded weights are gathered for both passes.
    halves = 3 if layout.shard == "weights" else 2
    link = step.link("data")
    seconds = link.exchange_seconds(held) * halves / 2
    overlaps = "data" in (step.links or {}) and layout.num_stages == 1
    return max(link.processor_share * seconds, seconds - 2 / 3 * layers_seconds) if overlaps else seconds


def stage_starts(step: MeasuredStep, num_stages: int) -> tuple[int, ...]:
    """Returns the index of the first layer of each stage, such that the slowest stage is as fast as possible.

    Args:
        step: the measured model.
        num_stages: at most as many as layers.
    """
    links = [Cost(layer.name) for layer in step.layers]
    return balanced(links, [layer.share for layer in step.layers], num_stages).starts


def _pipeline_seconds(step: MeasuredStep, layout: MeasuredLayout, rows: float) -> tuple[dict[str, float], float]:
    """Returns the parts of a pipeline's step, and the bytes of the weights on the device with the most."""
    p, m = layout.num_stages, layout.num_microbatches
    table = SCHEDULES[layout.schedule](p, m)
    bounds = [*stage_starts(step, table.num_stages), len(step.layers)]
    stages = [step.layers[bounds[k] : bounds[k + 1]] for k in range(table.num_stages)]
    num_rows = rows / m
    one = replace(layout, num_data=1, num_stages=1)
    whole = _layer_seconds(step, one, num_rows)
    peers = layout.num_replicas * layout.num_tensor
    held = [_bytes_of(stage, layout) for stage in stages]
    shares = [sum(layer.share for layer in stage) for stage in stages]
    exchanges = [
        _tensor_seconds(step, stage, layout, num_rows) + _expert_seconds(step, stage, layout, num_rows)
        for stage in stages
    ]

    link = step.link("pipe")
    message = link.exchange_seconds(max(stage[-1].output_bytes for stage in stages) * num_rows)

    def seconds(action: Action) -> float:
        part = _PARTS_OF_PASSES[action.kind]
        if action.kind in (Kind.BACKWARD_INPUT, Kind.BACKWARD_WEIGHT):
            part += (step.halves - 1) / 2
        found = step.seconds_of_pass + part * (whole * shares[action.stage] + exchanges[action.stage])
        if action.kind != Kind.BACKWARD_WEIGHT:
            # A pass receives its input and sends its output, except at the ends of the model.
            num_messages = (action.stage > 0) + (action.stage < table.num_stages - 1)
            found += num_messages * link.processor_share * message
        if action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT) and action.microbatch > 0:
            # The gradients of a micro-batch are added to those before it.
            found += held[action.stage] / step.add_bytes_per_second
        return found

    length = schedule_seconds(
        table,
        seconds,
        slowdown=lambda running: step.slowdown(running * peers),
        message_seconds=message,
    )
    busy = step.slowdown(peers) * m * whole / p
    of_devices = [0.0] * p
    for k, num_bytes in enumerate(held):
        of_devices[table.device_of(k)] += num_bytes
    return {"layers": busy, "bubble": max(0.0, length - busy), "tensor": 0.0}, max(of_devices)
