"""Measures steps and messages in turn, for any library. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.turns import turns
from harness.workers import Report

from model_parallel.bounds import traffic
from model_parallel.cases import FLOAT_BYTES, Case, Workload

#: Trains one step, or exchanges `NUM_IN_A_ROW` messages, and returns when that is done.
Call = Callable[[], object]
#: The number of messages in one call, one after the other: each waits for the previous one.
NUM_IN_A_ROW = 16
_NUM_WARM = 2
_NUM_CALLS = 4


def measure(
    workload: Workload,
    make_step: Callable[[Case], Call],
    make_exchange: Callable[[Case, int], Call] | None,
    report: Report,
) -> None:
    """Reports one measurement in milliseconds per turn, until the benchmark ends.

    Args:
        workload: its turns are measured.
        make_step: makes a function that trains one step.
        make_exchange: makes a function that exchanges messages between the processes: along a pipeline the same number
            in each direction, or sums over shards; takes the case and the number of float32 values of a message. None
            where no messages are sent: then their turns report 0.
        report: takes a measurement; returns at the next turn of this process.
    """
    calls: dict[tuple[Case, str], Call] = {}
    for case in workload.cases:
        calls[case, "step"] = make_step(case)
        if make_exchange is not None:
            calls[case, "latency"] = make_exchange(case, 1)
            calls[case, "core"] = make_exchange(case, traffic(case).message_bytes // FLOAT_BYTES)
    for call in calls.values():
        call()
    # The first report is discarded.
    report(0.0)
    for turn in turns(workload.turns):
        if turn.measure in ("latency", "core"):
            exchange = calls.get((turn.case, turn.measure))
            both = (0.0, 0.0) if exchange is None else _milliseconds(exchange, _NUM_WARM, _NUM_CALLS)
            report(both[turn.measure == "core"] / NUM_IN_A_ROW)
        else:
            # The first step warms up caches that went cold while waiting.
            both = _milliseconds(calls[turn.case, "step"], 1, workload.num_steps)
            report(both[turn.measure == "busy"])


def _milliseconds(call: Call, num_skipped: int, count: int) -> tuple[float, float]:
    """Returns the means of `count` calls, after `num_skipped` others: elapsed time, and CPU time of this process."""
    for _ in range(num_skipped):
        call()
    start, start_of_core = time.perf_counter(), time.process_time()
    for _ in range(count):
        call()
    return 1e3 * (time.perf_counter() - start) / count, 1e3 * (time.process_time() - start_of_core) / count
