"""Measures the cases' steps in turn, for any library. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.turns import turns
from harness.workers import Report

from pipeline.cases import Case, Workload
from pipeline.sizes import SLEEPS_OF_A_STAGE

Step = Callable[[], object]


def measure(workload: Workload, make_step: Callable[[Case], Step], report: Report) -> None:
    """Reports one case per turn, in the part's unit, until the benchmark ends.

    Args:
        workload: its cases are measured.
        make_step: makes a function that trains one step and returns when it has been computed.
        report: takes a measurement; returns at the next turn of this process.
    """
    steps = {case: make_step(case) for case in workload.cases}
    for step in steps.values():
        step()
    # The first report is discarded.
    report(0.0)
    for case in turns(workload.cases):
        if workload.part != "sleep":
            # Warms up caches that went cold while waiting, which does not matter to steps that sleep.
            steps[case]()
        start = time.perf_counter()
        for _ in range(workload.num_steps):
            steps[case]()
        report(value_of((time.perf_counter() - start) / workload.num_steps, workload.part, case))


def measure_first(workload: Workload, make_step: Callable[[Case], Step], report: Report) -> None:
    """Reports the seconds of the first step, with everything that is done once before it, until the benchmark ends."""
    report(0.0)
    for case in turns(workload.cases):
        step = make_step(case)
        start = time.perf_counter()
        step()
        report(time.perf_counter() - start)


def value_of(seconds: float, part: str, case: Case) -> float:
    """Returns the value reported for a step of `seconds`, in the part's unit."""
    if part == "sleep":
        one_after_the_other = case.num_stages * case.num_microbatches * SLEEPS_OF_A_STAGE * case.size / 1e3
        return one_after_the_other / seconds
    return case.batch_size / seconds if part == "one_stage" else 1e3 * seconds
