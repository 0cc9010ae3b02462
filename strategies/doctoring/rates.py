"""Measures the latency and bandwidth of exchanges between processes."""

from __future__ import annotations

import functools
import statistics
import time
from collections.abc import Callable
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.topology.devices import short_name
from strategies.topology.threads import computing_threads

#: Sizes in units of 10^6 bytes, and the number of measurements of each.
SIZES_MB = {0.1: 15, 1.0: 15, 10.0: 7, 100.0: 3}

#: The dtypes that training sums: gradients, also in half precision, and numbers of rows, ends and votes.
DTYPES = (tf.float32, tf.bfloat16, tf.int32, tf.int64)

#: The size of the tensor that is measured for each of these dtypes.
SIZE_OF_EACH_DTYPE_MB = 1.0


class Timing(NamedTuple):
    """The time of an exchange.

    Attributes:
        seconds: the median of one exchange.
        processor_seconds: the seconds of this process' threads during an exchange, on average.
    """

    seconds: float
    processor_seconds: float


#: Takes the number of float32 values and the number of measurements; returns the time of one exchange.
Timed = Callable[[int, int], Timing]


def measure(strategy: Any, max_mb: float) -> dict[str, Any]:
    """Measures all-reduces over the ranks: microseconds for one number, and GB/s by size and by dtype.

    GB/s is the bytes of one rank's tensor, divided by the median time of its all-reduce.

    Raises:
        ValueError: a sum is wrong.
    """
    process_group = strategy.extended.engine.process_group
    by_size = by_sizes(functools.partial(sum_timing, process_group, tf.float32), max_mb)
    size_mb = min(SIZE_OF_EACH_DTYPE_MB, max_mb)
    by_dtype = {
        dtype.name: _rate(
            size_mb,
            sum_timing(process_group, dtype, max(1, round(size_mb * 1e6 / dtype.size)), SIZES_MB[1.0]).seconds,
        )
        for dtype in DTYPES
    }
    return {
        "implementation": strategy.communication,
        "devices": [short_name(device) for device in strategy.extended.worker_devices],
        **by_size,
        f"GB/s of {size_mb:g} MB": by_dtype,
    }


def by_sizes(timed: Timed, max_mb: float) -> dict[str, Any]:
    """Returns the latency, in microseconds for one number, GB/s by size up to `max_mb`, and the share of processors.

    "processor share", from 0 to 1, is the part of an exchange's time in which it takes the threads of a CPU that
    computes, for the largest size. Work of GPUs goes on meanwhile.
    """
    latency = timed(1, 30)
    timings = {
        size_mb: timed(round(size_mb * 1e6 / 4), repetitions)
        for size_mb, repetitions in SIZES_MB.items()
        if size_mb <= max_mb
    }
    rates = {f"{size_mb:g} MB": _rate(size_mb, timing.seconds) for size_mb, timing in timings.items()}
    found: dict[str, Any] = {"latency in microseconds": round(latency.seconds * 1e6, 1), "GB/s": rates}
    if not tf.config.list_physical_devices("GPU"):
        largest = [latency, *timings.values()][-1]
        share = largest.processor_seconds / (largest.seconds * computing_threads())
        found["processor share"] = round(min(1.0, share), 2)
    return found


def sum_timing(process_group: Any, dtype: tf.DType, num_values: int, repetitions: int) -> Timing:
    """Returns the time of an all-reduce of `num_values` numbers over a process group; checks the sum.

    Raises:
        ValueError: the sum is wrong.
    """
    part = tf.fill([num_values], tf.cast(_term(dtype, process_group.rank), dtype))
    received, timing = measured(lambda part: process_group.sum([part])[0], part, repetitions)
    expected = sum(_term(dtype, rank) for rank in range(process_group.num_processes))
    if received != expected:
        raise ValueError(f"the sum of {dtype.name} over all ranks is {received:g}, expected {expected:g}")
    return timing


def measured(exchange: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor, repetitions: int) -> tuple[float, Timing]:
    """Returns the last number of an exchange's result, and its time after two untimed runs."""
    function = tf.function(exchange, autograph=False)
    seconds, processor_seconds = [], []
    for _ in range(2 + repetitions):
        processor_start, start = time.process_time(), time.perf_counter()
        # Reading one value waits for the whole result.
        received = float(function(value)[-1])
        seconds.append(time.perf_counter() - start)
        processor_seconds.append(time.process_time() - processor_start)
    return received, Timing(statistics.median(seconds[2:]), statistics.mean(processor_seconds[2:]))


def _term(dtype: tf.DType, rank: int) -> int:
    """Returns the number that a rank adds: a small one, so that sums are exact in any order."""
    if dtype != tf.bfloat16:
        return rank + 1
    # bfloat16 has 8 significant bits, which hold integers up to 256.
    return 1 + rank % 2 if rank < 128 else 0


def _rate(size_mb: float, seconds: float) -> float:
    return float(f"{size_mb / 1e3 / seconds:.3g}")
