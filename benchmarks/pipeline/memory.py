"""The peak increase of a process' memory during steps. Linux only, standard library only."""

from __future__ import annotations

from collections.abc import Callable

from harness import memory
from harness.turns import turns
from harness.workers import Report

from pipeline.cases import Case, Workload
from pipeline.clock import Step

_NUM_SKIPPED = 3


def measure(workload: Workload, make_step: Callable[[Case], Step], report: Report) -> None:
    """Reports the megabytes that steps of a case take, one case per turn, until the benchmark ends."""
    steps = {case: make_step(case) for case in workload.cases}
    for step in steps.values():
        # Memory that stays allocated does not count: graphs, optimizers, thread pools.
        for _ in range(_NUM_SKIPPED):
            step()
    report(0.0)
    for case in turns(workload.cases):
        report(increase(steps[case], workload.num_steps) / 1e6)


def increase(step: Step, num_steps: int) -> int:
    """Returns the peak of resident memory during the steps, less the resident memory before, in bytes."""

    def steps() -> None:
        for _ in range(num_steps):
            step()

    before, highest = memory.peak(steps)
    return highest - before
