"""Requests for traces and the answers of ranks, in one process."""

from __future__ import annotations

from dataclasses import replace
from typing import Any

import pytest

from strategies.monitoring import traces
from strategies.monitoring.reports import from_text, to_text
from strategies.monitoring.store import MemoryStore
from strategies.monitoring.trace_service import TraceError, TraceService
from tests.clock import Clock
from tests.strategies.monitoring.made import LAUNCHER, OTHER, RANK


def filled() -> MemoryStore:
    store = MemoryStore()
    store.post("rank", 0, to_text(RANK))
    store.post("rank", 1, to_text(replace(OTHER, total_steps=252)))
    store.post("launcher", 0, to_text(LAUNCHER))
    return store


def answer(store: MemoryStore, request: traces.TraceRequest, rank: int, **details: str) -> None:
    store.post(traces.answer_key(request.id), rank, to_text(traces.TraceAnswer(rank, **details)))


def test_all_ranks_have_read_the_request_before_its_first_step() -> None:
    """Three seconds of ten steps each, from the rank that is furthest."""
    store = filled()
    request = TraceService(store).request(5)
    assert (request.start_step, request.num_steps) == (282, 5)
    assert traces.read_request(store) == request
    assert traces.start_step([replace(RANK, total_steps=0, steps_per_second=None)]) == 3


@pytest.mark.parametrize(
    ("now", "peak", "ahead"), [(8.0, 40.0, 120), (None, 40.0, 120), (40.0, 0.0, 120), (0.01, 0.0, 3)]
)
def test_pauses(now: float | None, peak: float, ahead: int) -> None:
    """After a pause, the first step is no nearer than it must be."""
    report = replace(RANK, steps_per_second=now, peak_steps_per_second=peak)
    assert traces.start_step([report]) == RANK.total_steps + ahead


def test_answers_of_all_ranks() -> None:
    store = filled()
    service = TraceService(store)
    request = service.request(5)
    answer(store, request, 1, events="[1]")
    found = service.answers(request.id)
    assert found is not None
    assert (found.missing, found.to_json()["complete"]) == ([0], False)
    answer(store, request, 0, error="no")
    store.post(traces.answer_key(request.id), 2, "{")
    found = service.answers(request.id)
    assert found is not None
    assert found.to_json() == {
        "id": request.id,
        "start_step": 282,
        "num_steps": 5,
        "complete": True,
        "expected": [0, 1],
        "ranks": {"1": {}, "0": {"error": "no"}},
    }
    assert service.answers("other") is None


def test_a_rank_that_has_ended_is_not_waited_for() -> None:
    store = filled()
    service = TraceService(store)
    request = service.request(5)
    ended = replace(LAUNCHER.processes[0], status=-9)
    store.post("launcher", 0, to_text(replace(LAUNCHER, processes=(ended, LAUNCHER.processes[1]))))
    found = service.answers(request.id)
    assert found is not None
    assert (dict(found.errors), found.missing) == ({0: "this rank has ended: killed by SIGKILL (9)"}, [1])


def test_slow_steps_take_longer() -> None:
    """Eight steps of 15 s, and as much again."""
    clock, store = Clock(), MemoryStore()
    slow = replace(RANK, world_size=1, steps_per_second=1 / 15)
    store.post("rank", 0, to_text(slow))
    service = TraceService(store, clock.monotonic)
    request = service.request(5)
    assert (request.start_step, service.limit_seconds) == (253, 240.0)
    clock.seconds += 200
    with pytest.raises(TraceError, match="rank 0 has not sent its part"):
        service.request(5)
    clock.seconds += 50
    assert service.request(5)


def test_a_restart_ends_a_trace() -> None:
    """The launcher removes request and answers when it begins a round of ranks."""
    store = filled()
    service = TraceService(store)
    request = service.request(5)
    store.forget(traces.REQUEST)
    found = service.answers(request.id)
    assert found is not None
    assert set(found.errors.values()) == {"the ranks of the job were restarted meanwhile"}
    assert service.request(6).num_steps == 6


def test_one_request_at_a_time() -> None:
    clock, store = Clock(), filled()
    service = TraceService(store, clock.monotonic)
    first = service.request(5)
    answer(store, first, 0, events="a")
    with pytest.raises(TraceError, match="rank 1 has not sent its part"):
        service.request(5)
    # A rank that never answers does not hold up the others for ever.
    clock.seconds += 200
    second = service.request(5)
    assert service.answers(first.id) is None
    assert store.read(traces.answer_key(first.id)) == {}
    for rank in (0, 1):
        answer(store, second, rank, events="b")
    assert service.request(6).num_steps == 6


def test_a_record_that_is_too_long_for_a_message_is_an_error() -> None:
    """Each quote takes four bytes in a message, which has the record as text of a text."""
    short, long = (traces.TraceAnswer(1, count * '"') for count in (2**20, 2**22))
    assert traces.answer_text(short) == to_text(short)
    found = traces.TraceAnswer.from_json(from_text(traces.answer_text(long)))
    assert (found.rank, found.events) == (1, "")
    assert found.error == "its record takes 16.0 MiB, more than 8. Record fewer steps."


@pytest.mark.parametrize("num_steps", [0, -1, 101])
def test_numbers_of_steps_that_are_refused(num_steps: int) -> None:
    with pytest.raises(TraceError, match=f"from 1 to 100. Received: {num_steps}"):
        TraceService(filled()).request(num_steps)


def test_nobody_to_trace() -> None:
    with pytest.raises(TraceError, match="No rank reports"):
        TraceService(MemoryStore()).request(5)


@pytest.mark.parametrize(
    ("details", "reason"),
    [
        (None, r"Rank 1 cannot record a trace: it does not train in `fit`, or not yet \(starting\)"),
        ({"can_record": False, "call": "predict"}, r"does not train in `fit`, or not yet \(predict\)"),
        ({"steps_per_second": None}, "Rank 1 cannot record a trace yet: it has not finished its first steps"),
    ],
    ids=str,
)
def test_a_trace_is_one_of_all_ranks(details: dict[str, Any] | None, reason: str) -> None:
    store = MemoryStore()
    store.post("rank", 0, to_text(RANK))
    if details is not None:
        store.post("rank", 1, to_text(replace(OTHER, **details)))
    with pytest.raises(TraceError, match=reason):
        TraceService(store).request(5)
    assert traces.read_request(store) is None


def test_a_rank_that_has_ended_cannot_be_traced() -> None:
    store = filled()
    ended = replace(LAUNCHER.processes[1], status=0)
    store.post("launcher", 0, to_text(replace(LAUNCHER, processes=(LAUNCHER.processes[0], ended))))
    with pytest.raises(TraceError, match="Rank 1 cannot record a trace, since it has ended: exit code 0"):
        TraceService(store).request(5)


def test_what_is_no_request_is_none() -> None:
    store = MemoryStore()
    assert traces.read_request(store) is None
    store.post(traces.REQUEST, 0, "{}")
    assert traces.read_request(store) is None
