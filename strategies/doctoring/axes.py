"""Latency and bandwidth along each mesh axis that crosses processes."""

from __future__ import annotations

import functools
import math
from collections.abc import Mapping
from typing import Any

import tensorflow as tf

from strategies.doctoring.rates import by_sizes, median_seconds, sum_seconds


def make_devices(axes: Mapping[str, int], num_processes: int) -> None:
    """Gives this process, if it has no GPU, as many logical CPU devices as the mesh needs of it.

    Args:
        axes: sizes of mesh axes; of one that is -1, the least that does.
        num_processes: the world size.
    """
    if tf.config.list_physical_devices("GPU"):
        return
    num_devices = math.prod(size for size in axes.values() if size > 0)
    own = [tf.config.LogicalDeviceConfiguration()] * max(1, math.ceil(num_devices / num_processes))
    tf.config.set_logical_device_configuration(tf.config.list_physical_devices("CPU")[0], own)


def measure_axes(groups: Any, max_mb: float) -> dict[str, Any]:
    """Measures, along each axis that crosses processes, what training does there most; returns it by axis.

    Along "data" and "tensor" these are all-reduces: GB/s are the bytes of one rank's tensor, by the median time. Along
    "pipe" every stage sends to the next one, then back: GB/s are those of one way.

    Args:
        groups: the process groups of this process, as its strategy has them.
        max_mb: the largest tensor, in units of 10^6 bytes.

    Raises:
        ValueError: a wrong sum, or a wrong value received.
    """
    sums = {"data": groups.data_of_first, "tensor": groups.model.get("tensor")}
    found: dict[str, Any] = {
        axis: {
            "by": "all-reduce",
            "processes": group.num_processes,
            **by_sizes(functools.partial(sum_seconds, group, tf.float32), max_mb),
        }
        for axis, group in sums.items()
        if group is not None
    }
    stages, collectives = groups.model.get("pipe"), groups.collectives
    if stages is not None and collectives is not None:
        seconds = functools.partial(_hop_seconds, collectives, stages.rank, stages.num_processes)
        found["pipe"] = {"by": "send/recv", "processes": stages.num_processes, **by_sizes(seconds, max_mb)}
    return found or {"crossing processes": "none"}


def _hop_seconds(collectives: Any, position: int, num_stages: int, num_values: int, repetitions: int) -> float:
    """Returns the median time of one way of a tensor that every stage sends to the next one and gets back."""
    there = [(stage, stage + 1) for stage in range(num_stages - 1)]
    back = [(target, source) for source, target in there]

    def exchange(value: tf.Tensor) -> tf.Tensor:
        for pairs in (there, back):
            [value] = collectives.permute([value], "pipe", pairs, differentiable=False)
        return value

    sent = float(position + 1)
    received, seconds = median_seconds(exchange, tf.fill([num_values], sent), repetitions)
    # The last stage sends to none.
    expected = sent if position + 1 < num_stages else 0.0
    if received != expected:
        raise ValueError(f"stage {position} has sent {expected:g} along 'pipe' and received {received:g} back")
    return seconds / 2
