"""Requests for traces of a few steps, which all ranks record from the same step on without asking each other.

The server chooses the step: far enough ahead of all ranks that each has read the request before it gets there.
"""

from __future__ import annotations

import json
import math
import secrets
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from strategies.control_plane.message import Message
from strategies.monitoring.reports import RankReport, from_text, to_text
from strategies.monitoring.store import MAX_SENT_BYTES, ReportStore, num_sent_bytes

#: The key of the last request, with the number 0, and the beginning of the keys of answers.
REQUEST = "request"
ANSWERS = "trace-"
# A profile of many steps does not fit into memory.
MAX_STEPS = 100
# A rank reports and reads requests twice a second; a report may be late on a busy machine.
_SECONDS_AHEAD = 3.0
_LEAST_STEPS_AHEAD = 3


@dataclass(frozen=True)
class TraceRequest(Message):
    """A request to record a few steps.

    Args:
        id: a random word.
        start_step: the number of finished training steps of a process at which to begin; see `RankReport.total_steps`.
        num_steps: the number of steps.
    """

    id: str
    start_step: int
    num_steps: int


@dataclass(frozen=True)
class TraceAnswer(Message):
    """The answer of a rank: its events, as text, or the reason why there are none."""

    rank: int
    events: str = ""
    error: str = ""


@dataclass(frozen=True)
class TraceAnswers:
    """The answers to a request so far.

    Args:
        request: the request.
        events: by rank, its events.
        errors: by rank, the reason why there are none.
        expected: the ranks that are to answer.
    """

    request: TraceRequest
    events: Mapping[int, str]
    errors: Mapping[int, str]
    expected: tuple[int, ...]

    @property
    def missing(self) -> list[int]:
        """The ranks that have not answered."""
        return [rank for rank in self.expected if rank not in self.events and rank not in self.errors]

    def to_json(self) -> dict[str, object]:
        """Returns the answers as JSON values, without the events: clients ask again and again until all are there."""
        ranks: dict[str, dict[str, str]] = {str(rank): {} for rank in self.events}
        ranks |= {str(rank): {"error": text} for rank, text in self.errors.items()}
        complete = not self.missing
        return {**self.request.to_json(), "complete": complete, "expected": list(self.expected), "ranks": ranks}


def answer_key(request_id: str) -> str:
    """Returns the key under which ranks answer a request."""
    return f"{ANSWERS}{request_id}"


def answer_text(answer: TraceAnswer) -> str:
    """Returns an answer as text; the reason why it cannot be sent, if it is too long for a message of the job."""
    text = to_text(answer)
    if (size := num_sent_bytes(text)) > MAX_SENT_BYTES:
        reason = f"its record takes {size / 2**20:.1f} MiB, more than {MAX_SENT_BYTES / 2**20:.0f}. Record fewer steps."
        return to_text(TraceAnswer(answer.rank, error=reason))
    return text


def start_step(reports: Iterable[RankReport]) -> int:
    """Returns the step at which all ranks can begin a trace that is requested now."""
    steps, ahead = [0], [float(_LEAST_STEPS_AHEAD)]
    for report in reports:
        steps.append(report.total_steps)
        # The peak, too: a pause, as of a validation, makes the speed of the last seconds too small.
        ahead.append(max(report.peak_steps_per_second, report.steps_per_second or 0.0) * _SECONDS_AHEAD)
    return max(steps) + math.ceil(max(ahead))


def usual_seconds(reports: Iterable[RankReport], request: TraceRequest) -> float:
    """Returns the time until all ranks have recorded the steps of a request, at their speed; 0.0 if it is not known."""
    seconds = [0.0]
    for report in reports:
        speed = report.steps_per_second or report.peak_steps_per_second
        if speed:
            seconds.append((request.start_step + request.num_steps - report.total_steps) / speed)
    return max(seconds)


def post_request(store: ReportStore, reports: Iterable[RankReport], num_steps: int) -> TraceRequest:
    """Posts a request to all ranks, and returns it; it replaces an earlier one that a rank has not read yet.

    Raises:
        OSError: it cannot be posted.
    """
    request = TraceRequest(secrets.token_hex(8), start_step(reports), num_steps)
    store.post(REQUEST, 0, to_text(request), to_all=True)
    return request


def read_request(store: ReportStore) -> TraceRequest | None:
    """Returns the last request; None if there is none."""
    text = store.get(REQUEST, 0)
    try:
        return None if text is None else TraceRequest.from_json(from_text(text))
    except ValueError:
        return None


def read_answers(store: ReportStore, request: TraceRequest, ranks: Iterable[int]) -> TraceAnswers:
    """Returns the answers to a request so far; `ranks` are those that are expected to answer."""
    events, errors = {}, {}
    for rank, posted in store.read(answer_key(request.id)).items():
        try:
            answer = TraceAnswer.from_json(json.loads(posted.text))
        except ValueError:
            continue
        if answer.error:
            errors[rank] = answer.error
        else:
            events[rank] = answer.events
    return TraceAnswers(request, events, errors, tuple(ranks))
