"""Measures the steps of one turn, and hands over what was found, one number per turn. Standard library only."""

from __future__ import annotations

import time

from harness import memory, traffic
from harness.turns import turns
from harness.workers import Report

from sharded.cases import CORE, MEASURES, PEAK, SENT, SLOTS, STEP, WEIGHTS, Measure


class Clock:
    """Measures some steps in a row, whoever trains.

    Args:
        num_steps: between `start` and `stop`.
        report: takes a measurement; returns when it is this process' turn again.
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
        """The steps that count begin."""
        memory.forget_highest()
        self._sent = traffic.sent_bytes()
        self._start, self._start_of_core = time.perf_counter(), time.process_time()

    def stop(self) -> None:
        """The steps that count are done."""
        seconds, seconds_of_core = time.perf_counter() - self._start, time.process_time() - self._start_of_core
        self._values[STEP] = 1e3 * seconds / self._num_steps
        self._values[CORE] = 1e3 * seconds_of_core / self._num_steps
        self._values[SENT] = (traffic.sent_bytes() - self._sent) / 1e6 / self._num_steps
        self._values[PEAK] = memory.highest() / 1e6

    def hold(self, weights: int, slots: int) -> None:
        """Takes the bytes that this process holds between steps."""
        self._values |= {WEIGHTS: weights / 1e6, SLOTS: slots / 1e6}

    def hand_over(self) -> None:
        """Reports, and returns when it is this process' turn to train again."""
        if not self._is_warm:
            # The first report of all is thrown away. What comes next is a turn of steps.
            self._is_warm = True
            self._report(0.0)
            next(self._turns)
            return
        self._report(self._values[STEP])
        while (turn := next(self._turns)) is not STEP:
            self._report(self._values[turn])
