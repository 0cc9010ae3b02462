"""The time of a step of any model, from the measured times of its layers. Pure.

A step on one device is split into what each part of it costs: the passes of the layers, the loss and the metrics, the
update, and what does not depend on the rows. From these, and the speed of the links, follows the step on a mesh.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strategies.planning.hardware import Gpu
from strategies.planning.layout import MeshSizes, Shard
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

_BYTES_OF_UNIT = {"kB": 1e3, "MB": 1e6, "GB": 1e9}
# Seconds of a collective or a message between GPUs without bytes.
_GPU_LINK_SECONDS = 2e-5


@dataclass(frozen=True)
class Linear:
    """A number of seconds that grows with the rows: ``fixed + rows * of_row``.

    Attributes:
        fixed: seconds without rows.
        of_row: seconds of each row.
    """

    fixed: float
    of_row: float

    def at(self, num_rows: float) -> float:
        """Returns the seconds of a number of rows."""
        return self.fixed + num_rows * self.of_row

    @classmethod
    def through(cls, points: Sequence[tuple[float, float]]) -> Linear:
        """Returns the line with the smallest squared relative errors at some (rows, seconds), with no negative part."""
        weights = [1 / seconds**2 for _, seconds in points]
        total = sum(weights)
        rows = sum(w * x for w, (x, _) in zip(weights, points, strict=True)) / total
        mean = sum(w * y for w, (_, y) in zip(weights, points, strict=True)) / total
        spread = sum(w * (x - rows) ** 2 for w, (x, _) in zip(weights, points, strict=True))
        shared = sum(w * (x - rows) * (y - mean) for w, (x, y) in zip(weights, points, strict=True))
        slope = max(0.0, shared / spread) if spread else mean / rows
        if slope * rows > mean:
            slope = mean / rows
        return cls(mean - slope * rows, slope)


@dataclass(frozen=True)
class LayerShare:
    """The part of a model that one call of a layer is.

    Attributes:
        name: of the layer.
        share: its part of the seconds of all passes, from 0 to 1.
        num_bytes: of its trained weights; 0 if an earlier call has counted them.
        split_share: the part of it that the axis "tensor" divides, from 0 to 1.
        reduced_bytes: for each row, the bytes that the shards of the layer exchange, in both passes.
        num_exchanges: the number of exchanges with these bytes.
        output_bytes: for each row, the bytes of its output.
        expert_bytes: the part of `num_bytes` that the axis "expert" divides.
        routed_bytes: for each row, the bytes that experts receive and return, in both passes.
        num_experts: of a mixture; 0 for other layers.
    """

    name: str
    share: float
    num_bytes: float
    split_share: float = 0.0
    reduced_bytes: float = 0.0
    num_exchanges: int = 1
    output_bytes: float = 0.0
    expert_bytes: float = 0.0
    routed_bytes: float = 0.0
    num_experts: int = 0


@dataclass(frozen=True)
class Link:
    """The exchange between devices along an axis.

    Attributes:
        seconds: of a message without bytes.
        bytes_per_second: of one device's tensor in an all-reduce, or of a message.
    """

    seconds: float
    bytes_per_second: float

    def of(self, num_bytes: float, num_messages: int = 1) -> float:
        """Returns the seconds of messages with a number of bytes in all."""
        return num_messages * self.seconds + num_bytes / self.bytes_per_second

    @classmethod
    def from_rates(cls, rates: Mapping[str, Any]) -> Link:
        """Makes a link of what ``python -m strategies.doctor --json`` measured along an axis.

        Args:
            rates: "latency in microseconds", and "GB/s" by size, of which that of the largest tensor counts.

        Raises:
            ValueError: there is no rate, or one that is not above 0.

        Example:

            link = Link.from_rates({"latency in microseconds": 120, "GB/s": {"1 MB": 0.8, "10 MB": 1.1}})
            assert round(link.of(1.1e9), 3) == 1.0
        """
        by_size = {}
        for size, rate in rates["GB/s"].items():
            number, unit = size.split()
            by_size[float(number) * _BYTES_OF_UNIT[unit]] = rate
        if not by_size or min(by_size.values()) <= 0:
            raise ValueError(f"The rates of an axis are above 0 GB/s for some sizes. Received: {dict(rates)}.")
        return cls(1e-6 * rates["latency in microseconds"], 1e9 * by_size[max(by_size)])


@dataclass(frozen=True)
class MeasuredStep:
    """A step on one device, and the machine.

    Attributes:
        layers: the layers in the order of their calls.
        passes: of all layers, for rows of a micro-batch.
        rest: of a step besides passes and update: loss, metrics, Python; for rows of a replica.
        update: seconds of the optimizer's update of all weights.
        add_bytes_per_second: at which gradients are added.
        slowdowns: how many times slower a device computes while 1, 2, ... devices compute; empty if they do not share
            processors.
        links: by axis; devices of one process exchange at the rate of an addition if an axis is missing.
        seconds_of_pass: seconds that a pass of a stage costs besides its layers.
    """

    layers: Sequence[LayerShare]
    passes: Linear
    rest: Linear
    update: float
    add_bytes_per_second: float
    slowdowns: Sequence[float] = ()
    links: Mapping[str, Link] | None = None
    seconds_of_pass: float = 0.0

    @property
    def num_bytes(self) -> float:
        """The bytes of all trained weights."""
        return sum(layer.num_bytes for layer in self.layers)

    def slowdown(self, num_devices: int) -> float:
        """Returns how many times slower a device is while a number of devices compute."""
        known = (1.0, *self.slowdowns[1:])
        if num_devices <= len(known):
            return known[num_devices - 1]
        # Beyond what was measured, each device adds what the last one did.
        added = known[-1] - known[-2] if len(known) > 1 else 0.0
        return known[-1] + max(0.0, added) * (num_devices - len(known))

    def on(self, gpu: Gpu, flops_per_second: float, *, num_devices: int, host_size: int) -> MeasuredStep:
        """Returns the step as it would be on GPUs: what depends on rows is faster in proportion to matrix products.

        Args:
            gpu: the devices.
            flops_per_second: the rate of matrix products on the device of the measurements.
            num_devices: the number of GPUs.
            host_size: GPUs of a host.
        """
        faster = gpu.flops_per_second / flops_per_second
        memory = gpu.memory_bytes_per_second / self.add_bytes_per_second
        host = Link(_GPU_LINK_SECONDS, gpu.host_bytes_per_second)
        network = Link(_GPU_LINK_SECONDS, gpu.network_bytes_per_second)
        between = host if num_devices <= host_size else network
        return replace(
            self,
            passes=Linear(self.passes.fixed, self.passes.of_row / faster),
            rest=Linear(self.rest.fixed, self.rest.of_row / faster),
            update=self.update / memory,
            add_bytes_per_second=gpu.memory_bytes_per_second,
            slowdowns=(),
            links={"data": between, "expert": between, "pipe": between, "tensor": host},
        )

    def link(self, axis: str) -> Link:
        """Returns the link of an axis."""
        return (self.links or {}).get(axis) or Link(0.0, self.add_bytes_per_second)


@dataclass(frozen=True)
class MeasuredLayout(MeshSizes):
    """A mesh for a measured model.

    Attributes:
        num_data: replicas.
        num_stages: stages of a pipeline, one on each device of the axis "pipe".
        num_tensor: shards of each layer.
        num_microbatches: of a replica, in a pipeline.
        schedule: of the pipeline, by the name that `PipelineModel` accepts.
        shard: the state that replicas shard: "optimizer", "weights" or None.
        recompute: True if the backward passes compute the forward passes again.
        num_expert: size of the axis "expert", over which experts and rows are divided.
    """

    num_data: int = 1
    num_stages: int = 1
    num_tensor: int = 1
    num_microbatches: int = 1
    schedule: str = "1f1b"
    shard: Shard = None
    recompute: bool = False
    num_expert: int = 1


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
    parts["rest"] = step.rest.fixed + busy * step.rest.of_row * rows
    parts["gradients"] = _gradient_seconds(step, layout, held, parts["layers"])
    divided = layout.num_data if layout.shard else 1
    parts["update"] = busy * step.update * held / step.num_bytes / divided if step.num_bytes else 0.0
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
    return sum(step.link("tensor").of(layer.reduced_bytes * rows, layer.num_exchanges) for layer in exchanging)


def _expert_seconds(step: MeasuredStep, layers: Sequence[LayerShare], layout: MeasuredLayout, rows: float) -> float:
    """Returns the seconds of the exchanges between experts: two in each pass of a mixture."""
    if layout.num_expert == 1:
        return 0.0
    away = (layout.num_expert - 1) / layout.num_expert
    return sum(step.link("expert").of(away * layer.routed_bytes * rows, 4) for layer in layers if layer.num_experts)


def _bytes_of(layers: Sequence[LayerShare], layout: MeasuredLayout) -> float:
    """Returns the bytes of the trained weights of some layers on a device."""
    found = 0.0
    for layer in layers:
        whole = layer.num_bytes - layer.expert_bytes * (1 - 1 / layout.num_expert)
        found += whole * (1 - layer.split_share + layer.split_share / layout.num_tensor)
    return found


def _gradient_seconds(step: MeasuredStep, layout: MeasuredLayout, held: float, layers_seconds: float) -> float:
    """Returns the seconds of the exchanges between replicas, apart from what overlaps with the backward pass.

    Exchanges between processes overlap, if there is one stage. Devices of one process exchange by additions, which take
    the cores that compute.

    The rate of a link is that of a whole all-reduce, so each half of it, a reduce-scatter or an all-gather, takes half.
    """
    if layout.num_replicas == 1:
        return 0.0
    # Reduce-scatter and all-gather; sharded weights are gathered for both passes.
    halves = 3 if layout.shard == "weights" else 2
    seconds = step.link("data").of(held, 1) * halves / 2
    overlaps = "data" in (step.links or {}) and layout.num_stages == 1
    return max(0.0, seconds - 2 / 3 * layers_seconds) if overlaps else seconds


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

    def seconds(action: Action) -> float:
        part = _PARTS_OF_PASSES[action.kind]
        found = step.seconds_of_pass + part * (whole * shares[action.stage] + exchanges[action.stage])
        if action.kind in (Kind.BACKWARD, Kind.BACKWARD_WEIGHT) and action.microbatch > 0:
            # The gradients of a micro-batch are added to those before it.
            found += held[action.stage] / step.add_bytes_per_second
        return found

    message = step.link("pipe").of(max(stage[-1].output_bytes for stage in stages) * num_rows)
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
