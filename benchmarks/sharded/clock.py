"""Measures the steps of one turn, and reports the results, one number per turn. Standard library only."""

from __future__ import annotations

import time

from harness import memory, traffic
from harness.turns import turns
from harness.workers import Report

from sharded.cases import CORE, MEASURES, PEAK, SENT, SLOTS, STEP, WEIGHTS, Measure


class Clock:
    """Measures consecutive steps, for any library.

    Args:
        num_steps: number of steps between `start` and `stop`.
        report: takes a measurement; returns at the next turn of this process.
    """

    def __init__(self, num_steps: int, report: Report) -> None:
        self._num_steps = num_steps
        self._report = report
        self._turns = turns(MEASURES)
        self._is_warm = False
        self._values: dict[Measure, float] = {}
        self._sent = 0
        self._start = self._start_of_core = 0.0

    def start(self) -> None:
        """Starts the measurement."""
        memory.forget_highest()
        self._sent = traffic.sent_bytes()
        self._start, self._start_of_core = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """Ends the measurement."""
        seconds, seconds_of_core = time.perf_counter() - self._start, time.process_time() - self._start_of_core
        self._values[STEP] = 1e3 * seconds / self._num_steps
        self._values[CORE] = 1e3 * seconds_of_core / self._num_steps
        self._values[SENT] = (traffic.sent_bytes() - self._sent) / 1e6 / self._num_steps
        self._values[PEAK] = memory.highest() / 1e6

    def hold(self, weights: int, slots: int) -> None:
        """Records the bytes that this process holds between steps."""
        self._values |= {WEIGHTS: weights / 1e6, SLOTS: slots / 1e6}

    def hand_over(self) -> None:
        """Reports, and returns at this process' next turn to train."""
        if not self._is_warm:
            # The first report is discarded. The next turn is a turn of steps.
            self._is_warm = True
            self._report(0.0)
            next(self._turns)
            return
        self._report(self._values[STEP])
        while (turn := next(self._turns)) is not STEP:
            self._report(self._values[turn])
