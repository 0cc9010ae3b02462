"""All-reduces between the ranks, in a child process, and their bandwidth."""

from __future__ import annotations

import argparse
import faulthandler
import json
import signal
import statistics
import subprocess
import sys
import time
from typing import Any

import tensorflow as tf

import strategies
from strategies.doctoring.addresses import connect, in_parallel
from strategies.doctoring.report import Report
from strategies.topology.cluster import Cluster
from strategies.topology.devices import short_name

#: Sizes in units of 10^6 bytes, and the number of measurements of each.
SIZES_MB = {0.1: 15, 1.0: 15, 10.0: 7, 100.0: 3}

#: What training sums: gradients, also in half precision, and numbers of rows, ends and votes.
DTYPES = (tf.float32, tf.bfloat16, tf.int32, tf.int64)

#: The size of the tensors of each of these types.
SIZE_OF_EACH_DTYPE_MB = 1.0


def exchange(cluster: Cluster, report: Report, flags: argparse.Namespace) -> None:
    """Connects to the other ranks and reduces tensors with them, in a child process.

    TensorFlow blocks the interpreter while it waits for other processes, and may abort it if they fail.
    """
    strategy = "HorovodStrategy" if cluster.source in ("HOROVOD", "OMPI") else "MultiWorkerMirroredStrategy"
    seconds = flags.timeout_seconds
    command = [sys.executable, "-m", "strategies.doctor", "--exchange", strategy]
    command += ["--max-mb", str(flags.max_mb), "--timeout-seconds", str(seconds)]
    # If a launcher terminates us, end the child, too.
    signal.signal(signal.SIGTERM, lambda signum, _: sys.exit(128 + signum))
    silent: dict[str, str] | None = None
    with subprocess.Popen(command, stdin=subprocess.DEVNULL, stdout=subprocess.PIPE, text=True) as child:
        try:
            output, _ = child.communicate(timeout=seconds)
        except subprocess.TimeoutExpired:
            others = [address for rank, address in enumerate(cluster.addresses) if rank != cluster.rank]
            silent = in_parallel(connect, others, 4.0)
            child.kill()
            output, _ = child.communicate()
        finally:
            child.kill()
    said: dict[str, Any] = {}
    for line in output.splitlines():
        if line.startswith("{"):
            said |= json.loads(line)
    if "devices" in said:
        report.section("logical devices", {"here": said["devices"]})
    who = f"rank {cluster.rank} of {cluster.world_size}, {strategy}"
    doing = "the all-reduce of tensors" if "devices" in said else "the connection to the other processes"
    if silent is not None:
        missing = "; ".join(f"rank {cluster.addresses.index(a)} at {a} ({why})" for a, why in silent.items())
        report.problem(
            f"{who}: {doing} was not complete after {seconds:g} s. "
            f"{f'No answer from {missing}. ' if missing else ''}Start all ranks with the same command, at the same "
            f"time, and open their ports in the firewall; or wait longer: --timeout-seconds."
        )
    elif "problem" in said or child.returncode:
        why = said.get("problem", f"exit code {child.returncode}; see its output above")
        report.problem(f"{who}: {doing} failed: {why}")
    else:
        report.section("all-reduce", {"by": strategy, **said["rates"]})


def exchange_here(flags: argparse.Namespace) -> int:
    """Runs the all-reduces, in the child process, and prints progress as lines of JSON; returns the exit code."""
    # In case the parent is gone.
    faulthandler.dump_traceback_later(flags.timeout_seconds + 30, exit=True)
    try:
        strategy = getattr(strategies, flags.exchange)()
        print(json.dumps({"devices": list(strategy.extended.worker_devices)}), flush=True)
        print(json.dumps({"rates": measure(strategy, flags.max_mb)}), flush=True)
    except Exception as error:
        # Any error: this program reports problems in words.
        print(json.dumps({"problem": str(error).strip() or type(error).__name__}), flush=True)
        return 1
    return 0


def measure(strategy: Any, max_mb: float) -> dict[str, Any]:
    """Measures all-reduces over the ranks: microseconds for one number, and GB/s by size, and by type of numbers.

    GB/s are the bytes of one rank's tensor, divided by the median time of its all-reduce.

    Raises:
        ValueError: a wrong sum.
    """
    process_group = strategy.extended.process_group
    latency = _median_seconds(process_group, tf.float32, 1, 30)
    by_size = {}
    for size_mb, repetitions in SIZES_MB.items():
        if size_mb <= max_mb:
            num_values = round(size_mb * 1e6 / 4)
            by_size[f"{size_mb:g} MB"] = _rate(
                size_mb, _median_seconds(process_group, tf.float32, num_values, repetitions)
            )
    size_mb = min(SIZE_OF_EACH_DTYPE_MB, max_mb)
    by_dtype = {
        dtype.name: _rate(
            size_mb, _median_seconds(process_group, dtype, max(1, round(size_mb * 1e6 / dtype.size)), SIZES_MB[1.0])
        )
        for dtype in DTYPES
    }
    return {
        "implementation": strategy.communication,
        "devices": [short_name(device) for device in strategy.extended.worker_devices],
        "latency in microseconds": round(latency * 1e6, 1),
        "GB/s": by_size,
        f"GB/s of {size_mb:g} MB": by_dtype,
    }


def _median_seconds(process_group: Any, dtype: tf.DType, num_values: int, repetitions: int) -> float:
    """Returns the median time of the sum of so many numbers, after two sums that are not timed; checks them."""
    part = tf.fill([num_values], tf.cast(_term(dtype, process_group.rank), dtype))
    sum_up = tf.function(lambda part: process_group.sum([part])[0], autograph=False)
    seconds = []
    for _ in range(2 + repetitions):
        start = time.perf_counter()
        total = sum_up(part)
        # Reading one value waits for the whole result.
        received = float(total[-1])
        seconds.append(time.perf_counter() - start)
    expected = sum(_term(dtype, rank) for rank in range(process_group.num_processes))
    if received != expected:
        raise ValueError(f"the sum of {dtype.name} over all ranks is {received:g}, expected {expected:g}")
    return statistics.median(seconds[2:])


def _term(dtype: tf.DType, rank: int) -> int:
    """Returns what a rank adds: small numbers, whose sums are exact in whatever order they are added."""
    if dtype != tf.bfloat16:
        return rank + 1
    # Its 8 bits hold integers up to 256.
    return 1 + rank % 2 if rank < 128 else 0


def _rate(size_mb: float, seconds: float) -> float:
    return float(f"{size_mb / 1e3 / seconds:.3g}")
