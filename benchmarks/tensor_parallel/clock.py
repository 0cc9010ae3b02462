"""Measures steps in turn, for any library. Standard library only."""

from __future__ import annotations

import time
from collections.abc import Callable

from harness.workers import Report

from tensor_parallel.workload import Workload


def measure(step: Callable[[], object], workload: Workload, report: Report) -> None:
    """Reports rows per second of `step`, which returns when computed, until the benchmark ends."""
    step()
    while True:
        # Warms up caches that went cold while waiting.
        step()
        start = time.perf_counter()
        for _ in range(workload.num_steps):
            step()
        report(workload.num_steps * workload.batch_size / (time.perf_counter() - start))
