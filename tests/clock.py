"""A clock that only sleeping moves: measurements are the same on a busy machine."""

from __future__ import annotations

import time


class Clock:
    """Replaces the module `time` in a module under test; the time of day is the real one."""

    def __init__(self) -> None:
        self.seconds = 0.0

    def sleep(self, seconds: float) -> None:
        self.seconds += seconds

    def perf_counter(self) -> float:
        return self.seconds

    def monotonic(self) -> float:
        return self.seconds

    def process_time(self) -> float:
        return 0.0

    def monotonic_ns(self) -> int:
        return time.monotonic_ns()

    def time_ns(self) -> int:
        return time.time_ns()
