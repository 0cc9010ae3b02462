"""Measures the latency and bandwidth of exchanges between processes."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies.topology.devices import short_name

#: Sizes in units of 10^6 bytes, and the number of measurements of each.
SIZES_MB = {0.1: 15, 1.0: 15, 10.0: 7, 100.0: 3}

#: The dtypes that training sums: gradients, also in half precision, and numbers of rows, ends and votes.
DTYPES = (tf.float32, tf.bfloat16, tf.int32, tf.int64)

#: The size of the tensor that is measured for each of these dtypes.
SIZE_OF_EACH_DTYPE_MB = 1.0

#: Takes the number of float32 values and the number of measurements; returns the median seconds of one exchange.
Seconds = Callable[[int, int], float]


def measure(strategy: Any, max_mb: float) -> dict[str, Any]:
    """Measures all-reduces over the ranks: microseconds for one number, and GB/s by size and by dtype.

    GB/s is the bytes of one rank's tensor, divided by the median time of its all-reduce.

    Raises:
        ValueError: a sum is wrong.
    """
    process_group = strategy.extended.engine.process_group
    by_size = by_sizes(functools.partial(sum_seconds, process_group, tf.float32), max_mb)
    size_mb = min(SIZE_OF_EACH_DTYPE_MB, max_mb)
    by_dtype = {
        dtype.name: _rate(
            size_mb, sum_seconds(process_group, dtype, max(1, round(size_mb * 1e6 / dtype.size)), SIZES_MB[1.0])
        )
        for dtype in DTYPES
    }
    return {
        "implementation": strategy.communication,
        "devices": [short_name(device) for device in strategy.extended.worker_devices],
        **by_size,
        f"GB/s of {size_mb:g} MB": by_dtype,
    }


def by_sizes(seconds: Seconds, max_mb: float) -> dict[str, Any]:
    """Returns the latency, in microseconds for one number, and GB/s by size up to `max_mb`."""
    latency = seconds(1, 30)
    rates = {
        f"{size_mb:g} MB": _rate(size_mb, seconds(round(size_mb * 1e6 / 4), repetitions))
        for size_mb, repetitions in SIZES_MB.items()
        if size_mb <= max_mb
    }
    return {"latency in microseconds": round(latency * 1e6, 1), "GB/s": rates}


def sum_seconds(process_group: Any, dtype: tf.DType, num_values: int, repetitions: int) -> float:
    """Returns the median time of an all-reduce of `num_values` numbers over a process group; checks the sum.

    Raises:
        ValueError: the sum is wrong.
    """
    part = tf.fill([num_values], tf.cast(_term(dtype, process_group.rank), dtype))
    received, seconds = median_seconds(lambda part: process_group.sum([part])[0], part, repetitions)
    expected = sum(_term(dtype, rank) for rank in range(process_group.num_processes))
    if received != expected:
        raise ValueError(f"the sum of {dtype.name} over all ranks is {received:g}, expected {expected:g}")
    return seconds


def median_seconds(
    exchange: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor, repetitions: int
) -> tuple[float, float]:
    """Returns the last number of an exchange's result, and its median time after two untimed runs."""
    function = tf.function(exchange, autograph=False)
    seconds = []
    for _ in range(2 + repetitions):
        start = time.perf_counter()
        # Reading one value waits for the whole result.
        received = float(function(value)[-1])
        seconds.append(time.perf_counter() - start)
    return received, statistics.median(seconds[2:])


def _term(dtype: tf.DType, rank: int) -> int:
    """Returns the number that a rank adds: a small one, so that sums are exact in any order."""
    if dtype != tf.bfloat16:
        return rank + 1
    # bfloat16 has 8 significant bits, which hold integers up to 256.
    return 1 + rank % 2 if rank < 128 else 0


def _rate(size_mb: float, seconds: float) -> float:
    return float(f"{size_mb / 1e3 / seconds:.3g}")
