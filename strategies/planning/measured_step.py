"""A step of any model on one device, as measured, and the layouts on which it may run. Pure.

Its contract is tested in ``tests/strategies/planning/test_measured.py``.
"""

from __future__ import annotations

import itertools
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, replace
from typing import Any

from strategies.planning.hardware import Gpu
from strategies.planning.layout import MeshSizes, Shard

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
        bytes_per_second: of one device's tensor in an all-reduce, or of a message; of the largest that were measured.
        measured: (bytes, seconds) of measured messages, the smallest first; may be empty.
        processor_share: the part of the time in which an exchange takes the processor that computes, from 0 to 1. This
            part cannot overlap with computation. On GPUs it is 0.
    """

    seconds: float
    bytes_per_second: float
    measured: Sequence[tuple[float, float]] = ()
    processor_share: float = 0.0

    def exchange_seconds(self, num_bytes: float, num_messages: int = 1) -> float:
        """Returns the seconds of messages with a number of bytes in all."""
        return num_messages * self._message_seconds(num_bytes / num_messages) if num_messages else 0.0

    def _message_seconds(self, num_bytes: float) -> float:
        known = [(0.0, self.seconds), *self.measured]
        for (fewer, least), (more, most) in itertools.pairwise(known):
            if num_bytes < more:
                return least + (most - least) * (num_bytes - fewer) / (more - fewer)
        largest, seconds = known[-1]
        return seconds + (num_bytes - largest) / self.bytes_per_second

    @classmethod
    def from_rates(cls, rates: Mapping[str, Any]) -> Link:
        """Makes a link of what ``python -m strategies.doctor --json`` measured along an axis.

        Args:
            rates: "latency in microseconds", "GB/s" by size, and perhaps "processor share".

        Raises:
            ValueError: there is no rate, or one that is not above 0.

        Example:

            link = Link.from_rates({"latency in microseconds": 120, "GB/s": {"1 MB": 0.8, "10 MB": 1.1}})
            assert round(link.exchange_seconds(1.1e9), 3) == 1.0
        """
        by_size = {}
        for size, rate in rates["GB/s"].items():
            number, unit = size.split()
            by_size[float(number) * _BYTES_OF_UNIT[unit]] = rate
        if not by_size or min(by_size.values()) <= 0:
            raise ValueError(f"The rates of an axis are above 0 GB/s for some sizes. Received: {dict(rates)}.")
        sizes = sorted(by_size)
        latency = 1e-6 * rates["latency in microseconds"]
        # A larger message takes no less time than a smaller one: what was measured otherwise is noise.
        seconds = itertools.accumulate((size / (1e9 * by_size[size]) for size in sizes), max, initial=latency)
        measured = tuple(zip(sizes, list(seconds)[1:], strict=True))
        return cls(latency, 1e9 * by_size[sizes[-1]], measured, rates.get("processor share", 0.0))


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
        halves: how many times longer the passes take if the gradients of weights are computed in a pass of their own,
            as in zero-bubble schedules.
    """

    layers: Sequence[LayerShare]
    passes: Linear
    rest: Linear
    update: float
    add_bytes_per_second: float
    slowdowns: Sequence[float] = ()
    links: Mapping[str, Link] | None = None
    seconds_of_pass: float = 0.0
    halves: float = 1.0

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
