"""The server's part of traces: one request at a time, and the answers of the ranks to it."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import replace

from strategies.monitoring.job_status import read_status
from strategies.monitoring.reports import RankReport
from strategies.monitoring.store import ReportStore
from strategies.monitoring.traces import (
    MAX_STEPS,
    TraceAnswers,
    TraceRequest,
    answer_key,
    post_request,
    read_answers,
    read_request,
    usual_seconds,
)

# A rank that has not answered for so long, or for twice the usual time, does not hold up the next request.
_OVERDUE_SECONDS = 120.0


class TraceError(Exception):
    """A trace that cannot be requested; the message says why."""


class TraceService:
    """Requests traces from the ranks of a job.

    Args:
        store: takes requests and has the answers.
    """

    def __init__(self, store: ReportStore, clock: Callable[[], float] = time.monotonic) -> None:
        self._store, self._clock = store, clock
        self._lock = threading.Lock()
        self._last: TraceRequest | None = None
        self._asked_at, self._limit_seconds = 0.0, _OVERDUE_SECONDS
        self._ranks: tuple[int, ...] = ()

    def request(self, num_steps: int) -> TraceRequest:
        """Requests a trace of some steps from all ranks.

        Raises:
            TraceError: a rank has ended, does not train yet or has no known speed, another trace is being recorded, or
                the number of steps is out of range.
        """
        if not 1 <= num_steps <= MAX_STEPS:
            raise TraceError(f"The number of steps must be from 1 to {MAX_STEPS}. Received: {num_steps}.")
        with self._lock:
            if self._last is not None and self._clock() - self._asked_at < self._limit_seconds:
                missing = ", ".join(map(str, self._answers(self._last).missing))
                if missing:
                    raise TraceError(f"A trace is being recorded: rank {missing} has not sent its part. Try later.")
            reports = self._reports_of_all()
            if self._last is not None:
                self._store.forget(answer_key(self._last.id))
            self._last = request = post_request(self._store, reports, num_steps)
            self._asked_at, self._ranks = self._clock(), tuple(report.rank for report in reports)
            self._limit_seconds = max(_OVERDUE_SECONDS, 2 * usual_seconds(reports, request))
            return request

    @property
    def limit_seconds(self) -> float:
        """The time for which to wait for the answers to the last request."""
        return self._limit_seconds

    def _reports_of_all(self) -> list[RankReport]:
        """Returns the reports of all ranks, if all can record steps: a trace of some ranks does not show who waits."""
        ranks = read_status(self._store, time.time()).ranks
        if not any(rank.report for rank in ranks):
            raise TraceError("No rank reports its status yet. Try again when the training has begun.")
        reports = []
        for rank in ranks:
            report, who = rank.report, f"Rank {rank.rank} cannot record a trace"
            if not rank.is_alive and report is not None:
                raise TraceError(f"{who}, since it has ended: {rank.state}.")
            if report is None or not report.can_record:
                raise TraceError(f"{who}: it does not train in `fit`, or not yet ({rank.state}). Try again later.")
            if report.steps_per_second is None and not report.peak_steps_per_second:
                # Without a speed, the first step cannot be far enough ahead.
                raise TraceError(f"{who} yet: it has not finished its first steps. Try again in a moment.")
            reports.append(report)
        return reports

    def answers(self, request_id: str) -> TraceAnswers | None:
        """Returns the answers to a request so far; None if it is not the last one."""
        with self._lock:
            if self._last is None or self._last.id != request_id:
                return None
            return self._answers(self._last)

    def _answers(self, request: TraceRequest) -> TraceAnswers:
        """Returns the answers; a rank that has ended has its end as the reason why there is none."""
        found = read_answers(self._store, request, self._ranks)
        status = {rank.rank: rank for rank in read_status(self._store, time.time()).ranks}
        errors = dict(found.errors)
        # A new round of ranks, which knows nothing of the request, begins with its removal.
        is_lost = read_request(self._store) != request
        for rank in found.missing:
            if is_lost:
                errors[rank] = "the ranks of the job were restarted meanwhile"
            elif rank not in status or not status[rank].is_alive:
                errors[rank] = f"this rank has ended: {status[rank].state if rank in status else 'it is not known'}"
        return replace(found, errors=errors)
