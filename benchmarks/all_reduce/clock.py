"""Measures one case per turn, for any library. Standard library only."""

from __future__ import annotations

import statistics
import time
from collections.abc import Callable, Sequence

from harness.workers import Report

from all_reduce.cases import Case, turns

_NUM_SKIPPED = 2


def measure(all_cases: Sequence[Case], make_call: Callable[[Case], Callable[[], object]], report: Report) -> None:
    """Reports GB/s of one case per turn, until the benchmark ends.

    Args:
        all_cases: the cases, in the order of their turns.
        make_call: makes a function that reduces a case once, and returns when the result is available.
        report: takes GB/s, the bytes reduced per median time of a call; returns at the next turn of this process.
    """
    calls = {case: make_call(case) for case in all_cases}
    for call in calls.values():
        call()
    # The first report is discarded.
    report(0.0)
    for case in turns(all_cases):
        now = time.process_time if case.of_processor else time.perf_counter
        seconds = []
        for _ in range(_NUM_SKIPPED + case.num_calls):
            start = now()
            calls[case]()
            seconds.append(now() - start)
        report(case.gigabytes / statistics.median(seconds[_NUM_SKIPPED:]))
