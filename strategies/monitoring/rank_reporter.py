"""The reports of this rank: a thread samples and posts twice a second, so that a training step costs nothing more."""

from __future__ import annotations

import collections
import contextlib
import logging
import os
import socket
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass

from strategies.monitoring import memory, traces
from strategies.monitoring.progress import Progress, StepRate
from strategies.monitoring.reports import RANK, RankReport, to_text
from strategies.monitoring.store import ReportStore

SECONDS_BETWEEN_REPORTS = 0.5
_SAMPLES_PER_REPORT = 3
# The windows of shares: a rank that holds up all others is to show within two seconds.
_SHORT_SECONDS, _LONG_SECONDS = 1.25, 20.0
_INPUT_SECONDS, _LEAST_INPUT_SECONDS = 2.0, 1.0
# A shorter burst is no speed of the training.
_LEAST_PEAK_SECONDS = 0.5

_logger = logging.getLogger(__name__)


@dataclass(frozen=True)
class Probes:
    """Functions that read this process; the reporter's thread calls them. Each returns None for "not known".

    Args:
        call: the method of the model that runs; empty between calls.
        is_waiting: True if a collective is pending.
        seconds_waited_for_input: the time that this process has waited for batches so far.
        device_memory: the bytes in use, and the most so far, of this process' GPUs.
        is_waiting_current: False if `is_waiting` changes once a second only, as where counters are on GPUs.
    """

    call: Callable[[], str] = lambda: ""
    is_waiting: Callable[[], bool | None] = lambda: None
    seconds_waited_for_input: Callable[[], float | None] = lambda: None
    device_memory: Callable[[], tuple[int, int] | None] = lambda: None
    is_waiting_current: Callable[[], bool] = lambda: True


class Reporter:
    """Reports on this process, from a thread of its own, until `stop`. Nothing that fails here reaches the training.

    Args:
        rank, world_size: the rank of this process, and the number of ranks.
        store: takes the reports.

    Attributes:
        progress: the progress of training; callbacks write it.
        probes: read this process.
        on_trace_request: begins to record when the training gets to the step of a request; None: nobody records.
            The reporter's thread calls it, and it must not block.
    """

    def __init__(self, rank: int, world_size: int, store: ReportStore) -> None:
        self.progress = Progress()
        self.probes = Probes()
        self.on_trace_request: Callable[[traces.TraceRequest], None] | None = None
        self._rank, self._world_size, self._store = rank, world_size, store
        self._host, self._pid = socket.gethostname(), os.getpid()
        self._samples = _Samples()
        self._checkpoint: tuple[str, int, float] | None = None
        self._seen_request = ""
        self._has_warned = False
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._work, name="strategies-reporter", daemon=True)

    def start(self) -> None:
        """Starts the thread. A request from before, as of a round before a restart, is not answered."""
        with contextlib.suppress(OSError):
            request = traces.read_request(self._store)
            self._seen_request = "" if request is None else request.id
        self._thread.start()

    def stop(self) -> None:
        """Posts a last report and stops the thread; waits for it no longer than two seconds."""
        if os.getpid() != self._pid:
            # A forked child ends: it has no such thread, which may have held a lock when it forked.
            return
        self._stop.set()
        if self._thread.ident is not None and self._thread is not threading.current_thread():
            self._thread.join(2.0)

    def note_checkpoint(self, path: str, step: int | None = None) -> None:
        """Notes that the training was saved under a path, as it was after `step` steps; None: after all so far."""
        self._checkpoint = path, self.progress.total_steps if step is None else step, time.monotonic()

    def deliver(self, request_id: str, events: str) -> None:
        """Sends the events of this rank for a trace that was requested. Never raises."""
        self._answer(request_id, traces.TraceAnswer(self._rank, events))

    def deliver_error(self, request_id: str, error: str) -> None:
        """Sends the reason why this rank has no events for a trace that was requested. Never raises."""
        self._answer(request_id, traces.TraceAnswer(self._rank, error=error))

    def report(self, now: float) -> RankReport:
        """Returns the report of this moment."""
        progress, samples = self.progress, self._samples
        steps_per_second = samples.rate.per_second(now)
        units = progress.units_per_step
        checkpoint = self._checkpoint
        device = self.probes.device_memory()
        return RankReport(
            rank=self._rank,
            world_size=self._world_size,
            host=self._host,
            pid=self._pid,
            call=self.probes.call(),
            epoch=progress.epoch,
            epochs=progress.epochs,
            step=progress.step,
            steps_per_epoch=progress.steps_per_epoch,
            total_steps=progress.total_steps,
            fraction=progress.fraction,
            seconds_left=progress.seconds_left,
            unit=progress.unit,
            units_per_second=None if units is None or steps_per_second is None else units * steps_per_second,
            steps_per_second=steps_per_second,
            peak_steps_per_second=samples.peak_steps_per_second,
            waiting_input=samples.input_share,
            waiting_others=samples.waiting_share(now, _SHORT_SECONDS),
            waiting_others_longer=samples.waiting_share(now, _LONG_SECONDS),
            waiting_is_current=self.probes.is_waiting_current(),
            memory_bytes=memory.resident_bytes(),
            peak_memory_bytes=memory.peak_resident_bytes(),
            device_memory_bytes=None if device is None else device[0],
            peak_device_memory_bytes=None if device is None else device[1],
            can_record=self.on_trace_request is not None,
            checkpoint="" if checkpoint is None else checkpoint[0],
            checkpoint_step=None if checkpoint is None else checkpoint[1],
            checkpoint_age_seconds=None if checkpoint is None else now - checkpoint[2],
        )

    def _work(self) -> None:
        samples_until_report = 0
        stopped = False
        while True:
            try:
                now = time.monotonic()
                if not stopped:
                    self._samples.note_waiting(now, self.probes.is_waiting())
                self._samples.rate.note(now, self.progress.total_steps)
                if samples_until_report == 0 or stopped:
                    if not stopped:
                        self._samples.note_input(now, self.probes.seconds_waited_for_input())
                        self._samples.note_speed(now)
                        self._take_request()
                    self._store.post(RANK, self._rank, to_text(self.report(now)))
                    samples_until_report = _SAMPLES_PER_REPORT
                samples_until_report -= 1
            except Exception as error:
                # A full disk, or a folder that is gone: the training goes on unseen.
                self._warn(error)
            if stopped:
                return
            stopped = self._stop.wait(SECONDS_BETWEEN_REPORTS / _SAMPLES_PER_REPORT)

    def _take_request(self) -> None:
        request = traces.read_request(self._store)
        if request is None or request.id == self._seen_request:
            return
        if self._seen_request:
            # Nobody reads the answers to it any more.
            self._store.forget(traces.answer_key(self._seen_request))
        self._seen_request = request.id
        if self.on_trace_request is None:
            self.deliver_error(request.id, "this rank records no traces, or does not train yet")
        elif self.progress.total_steps > request.start_step:
            self.deliver_error(request.id, f"this rank was already at step {self.progress.total_steps}")
        else:
            self.on_trace_request(request)

    def _answer(self, request_id: str, answer: traces.TraceAnswer) -> None:
        try:
            self._store.post(traces.answer_key(request_id), self._rank, traces.answer_text(answer))
        except Exception as error:
            self._warn(error)

    def _warn(self, error: Exception) -> None:
        if not self._has_warned:
            self._has_warned = True
            _logger.warning("This rank cannot report its status, and trains on: %s: %s", type(error).__name__, error)


class _Samples:
    """The samples of the last seconds."""

    def __init__(self) -> None:
        self.rate = StepRate()
        self._waiting: collections.deque[tuple[float, bool]] = collections.deque()
        self._input: collections.deque[tuple[float, float]] = collections.deque()
        #: The most steps per second of half a second or more.
        self.peak_steps_per_second = 0.0

    def note_speed(self, now: float) -> None:
        """Notes the speed at a report."""
        speed = self.rate.per_second(now)
        if speed is not None and self.rate.seconds >= _LEAST_PEAK_SECONDS:
            self.peak_steps_per_second = max(self.peak_steps_per_second, speed)

    def note_waiting(self, now: float, is_waiting: bool | None) -> None:
        """Notes whether a collective is pending."""
        if is_waiting is not None:
            self._waiting.append((now, is_waiting))
        while self._waiting and self._waiting[0][0] < now - _LONG_SECONDS:
            self._waiting.popleft()

    def note_input(self, now: float, seconds: float | None) -> None:
        """Notes the time waited for input so far."""
        if seconds is not None:
            self._input.append((now, seconds))
        while len(self._input) > 2 and self._input[1][0] < now - _INPUT_SECONDS:
            self._input.popleft()

    def waiting_share(self, now: float, seconds: float) -> float | None:
        """Returns the share of the samples of the last seconds at which a collective was pending; None for too few."""
        recent = [is_waiting for time, is_waiting in self._waiting if time >= now - seconds]
        is_enough = bool(recent) and self._waiting[0][0] <= now - 0.8 * seconds
        return sum(recent) / len(recent) if is_enough else None

    @property
    def input_share(self) -> float | None:
        """The share of the last two seconds in which this process waited for its input; None if it is not known."""
        if len(self._input) < 2:
            return None
        (begin, before), (end, after) = self._input[0], self._input[-1]
        if end - begin < _LEAST_INPUT_SECONDS:
            return None
        return min(1.0, max(0.0, (after - before) / (end - begin)))
