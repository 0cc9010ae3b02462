"""Measures latency and bandwidth along each mesh axis that crosses processes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from strategies.doctoring.rates import Timing, by_sizes, measured, sum_timing


def make_devices(axes: Mapping[str, int], num_processes: int) -> None:
    """Creates the logical CPU devices that the mesh needs in this process, unless it has a GPU.

    Args:
        axes: the sizes of the mesh axes; -1 stands for the smallest possible size.
        num_processes: the world size.
    """
    if tf.config.list_physical_devices("GPU"):
        return
    num_devices = math.prod(size for size in axes.values() if size > 0)
    own = [tf.config.LogicalDeviceConfiguration()] * max(1, math.ceil(num_devices / num_processes))
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], own)


def measure_axes(groups: Any, max_mb: float) -> dict[str, Any]:
    """Measures the main communication of training along each axis that crosses processes; returns rates by axis.

    Along "data" and "tensor" it is an all-reduce: GB/s is the bytes of one rank's tensor, divided by the median time.
    Along "pipe" every stage sends to the next one, then back: GB/s is that of one way.

    Args:
        groups: the process groups of this process' strategy.
        max_mb: the largest tensor, in units of 10^6 bytes.

    Raises:
        ValueError: a sum or a received value is wrong.
    """
    sums = {"data": groups.data_of_first, "tensor": groups.model.get("tensor")}
    found: dict[str, Any] = {
        axis: {
            "by": "all-reduce",
            "processes": group.num_processes,
            **by_sizes(functools.partial(sum_timing, group, tf.float32), max_mb),
        }
        for axis, group in sums.items()
        if group is not None
    }
    stages, collectives = groups.model.get("pipe"), groups.collectives
    if stages is not None and collectives is not None:
        timed = functools.partial(_hop_timing, collectives, stages.rank, stages.num_processes)
        found["pipe"] = {"by": "send/recv", "processes": stages.num_processes, **by_sizes(timed, max_mb)}
    return found or {"crossing processes": "none"}


def _hop_timing(collectives: Any, position: int, num_stages: int, num_values: int, repetitions: int) -> Timing:
    """Returns the one-way time of a tensor that every stage sends to the next one and gets back."""
    forward = [(stage, stage + 1) for stage in range(num_stages - 1)]
    backward = [(target, source) for source, target in forward]

    def exchange(value: tf.Tensor) -> tf.Tensor:
        for pairs in (forward, backward):
            [value] = collectives.permute([value], "pipe", pairs, differentiable=False)
        return value

    sent = float(position + 1)
    received, timing = measured(exchange, tf.fill([num_values], sent), repetitions)
    # The last stage sends to no stage, and gets zeros back.
    expected = sent if position + 1 < num_stages else 0.0
    if received != expected:
        raise ValueError(f"stage {position} has sent {expected:g} along 'pipe' and received {received:g} back")
    return Timing(timing.seconds / 2, timing.processor_seconds / 2)
