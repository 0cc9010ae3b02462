"""The reporter of a rank: what it posts, and that nothing that fails there reaches the training."""

from __future__ import annotations

import contextlib
import json
import logging
import threading
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from strategies.monitoring import traces
from strategies.monitoring.rank_reporter import Probes, Reporter
from strategies.monitoring.reports import RankReport, to_text
from strategies.monitoring.store import FolderStore, MemoryStore

LIMIT_SECONDS = 60


class Waiting(MemoryStore):
    """A store that a test can wait for."""

    def __init__(self) -> None:
        super().__init__()
        self._changed = threading.Condition()

    def post(self, key: str, number: int, text: str, *, to_all: bool = False) -> None:
        """Replaces a text."""
        with self._changed:
            super().post(key, number, text)
            self._changed.notify_all()

    def wait_for(self, key: str, number: int, word: str) -> str:
        with self._changed:
            found = self._changed.wait_for(lambda: word in self._text(key, number), LIMIT_SECONDS)
            assert found, self._text(key, number)
            return self._text(key, number)

    def _text(self, key: str, number: int) -> str:
        posted = self.read(key).get(number)
        return "" if posted is None else posted.text


@contextlib.contextmanager
def reporting(store: MemoryStore, probes: Probes | None = None) -> Iterator[Reporter]:
    reporter = Reporter(1, 4, store)
    reporter.probes = probes or Probes()
    reporter.start()
    try:
        yield reporter
    finally:
        reporter.stop()


def test_a_report() -> None:
    store = Waiting()
    probes = Probes(lambda: "fit", lambda: True, lambda: 0.0, lambda: (2**20, 2**21))
    with reporting(store, probes) as reporter:
        progress = reporter.progress
        progress.rows_of_next = 32
        progress.begin(epochs=2, steps_per_epoch=10)
        progress.begin_epoch(1)
        progress.note_step(5)
        reporter.note_checkpoint("run/1")
        text = store.wait_for("rank", 1, '"run/1"')
    report = RankReport.from_json(json.loads(text))
    assert (report.rank, report.world_size, report.call, report.epoch, report.step) == (1, 4, "fit", 1, 5)
    assert (report.fraction, report.checkpoint_step) == (0.25, 5)
    assert (report.device_memory_bytes, report.peak_device_memory_bytes) == (2**20, 2**21)
    assert 2**20 < (report.memory_bytes or 0) <= (report.peak_memory_bytes or 0) + 2**24


def test_speed_and_waits_come_from_samples() -> None:
    reporter = Reporter(0, 1, MemoryStore())
    samples, progress = reporter._samples, reporter.progress
    progress.units_per_step = 8.0
    for sample in range(120):
        now = sample / 6
        samples.note_waiting(now, sample % 4 == 0 if now < 17.8 else True)
        samples.rate.note(now, sample // 3)
        samples.note_input(now, now / 10)
    report = reporter.report(now)
    assert report.steps_per_second == pytest.approx(2.0)
    assert report.units_per_second == pytest.approx(16.0)
    assert report.waiting_others == 1.0
    assert report.waiting_others_longer == pytest.approx(0.25 * 18 / 20 + 2 / 20, abs=0.02)
    assert report.waiting_input == pytest.approx(0.1)


def test_the_peak_is_the_speed_before_a_pause() -> None:
    """A trace that is requested after a validation begins far enough ahead. A slow step is no step in half a second."""
    samples = Reporter(0, 1, MemoryStore())._samples
    for now, steps in [(0.0, 1), (0.1, 41), (15.0, 42), (30.0, 43), (30.1, 43)]:
        samples.rate.note(now, steps)
        samples.note_speed(now)
    assert samples.peak_steps_per_second == pytest.approx(1 / 15, rel=0.01)
    for step in range(20):
        samples.rate.note(200 + step / 4, 44 + step)
        samples.note_speed(200 + step / 4)
    samples.note_speed(260.0)
    assert samples.peak_steps_per_second == pytest.approx(4.0)


def test_too_few_samples_show_nothing() -> None:
    reporter = Reporter(0, 1, MemoryStore())
    reporter._samples.note_waiting(0.0, True)
    reporter._samples.note_input(0.0, 0.0)
    report = reporter.report(0.5)
    assert [report.waiting_others, report.waiting_others_longer, report.waiting_input] == [None] * 3


def test_the_last_report_is_that_of_the_end() -> None:
    store = Waiting()
    with reporting(store) as reporter:
        store.wait_for("rank", 1, '"rank": 1')
        reporter.progress.note_step(77)
    assert '"total_steps": 77' in store.wait_for("rank", 1, "")


@pytest.mark.parametrize("fails", ["store", "probe"])
def test_what_fails_is_said_once(fails: str, tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    asked = threading.Semaphore(0)

    def failing() -> float:
        asked.release()
        if fails == "probe":
            raise RuntimeError("a broken probe")
        return 0.0

    reporter = Reporter(0, 1, FolderStore(tmp_path / "gone"))
    reporter.probes = Probes(seconds_waited_for_input=failing)
    with caplog.at_level(logging.WARNING):
        reporter.start()
        for _ in range(3):
            assert asked.acquire(timeout=LIMIT_SECONDS)
        reporter.deliver("request", "events")
        reporter.stop()
    assert [record.levelname for record in caplog.records] == ["WARNING"]
    assert "This rank cannot report its status, and trains on" in caplog.text


class TestTraces:
    REQUEST = traces.TraceRequest("one", 10, 5)

    def test_a_request_reaches_the_recorder_once(self) -> None:
        store, second = Waiting(), replace(self.REQUEST, id="two")
        taken: list[traces.TraceRequest] = []
        with reporting(store) as reporter:

            def record(request: traces.TraceRequest) -> None:
                taken.append(request)
                reporter.deliver(request.id, f"events of {request.id}")

            reporter.on_trace_request = record
            for request in (self.REQUEST, second):
                store.post(traces.REQUEST, 0, to_text(request))
                store.wait_for(traces.answer_key(request.id), 1, f"events of {request.id}")
            # It has looked at the last request again and again.
            reporter.progress.note_step(3)
            store.wait_for("rank", 1, '"total_steps": 3')
        assert taken == [self.REQUEST, second]
        assert store.read(traces.answer_key("one")) == {}

    def test_a_rank_that_records_nothing_says_so(self) -> None:
        store = Waiting()
        with reporting(store):
            store.post(traces.REQUEST, 0, to_text(self.REQUEST))
            assert "records no traces" in store.wait_for(traces.answer_key("one"), 1, "error")

    def test_a_rank_that_is_past_the_first_step_says_so(self) -> None:
        store = Waiting()
        with reporting(store) as reporter:
            reporter.on_trace_request = lambda request: None
            reporter.progress.note_step(11)
            store.post(traces.REQUEST, 0, to_text(self.REQUEST))
            assert "already at step 11" in store.wait_for(traces.answer_key("one"), 1, "step")

    def test_a_record_that_is_too_long_is_said_to_be(self) -> None:
        store = MemoryStore()
        Reporter(1, 4, store).deliver("one", 2**22 * '"')
        assert "Record fewer steps" in store.read(traces.answer_key("one"))[1].text

    def test_a_request_from_before_a_restart_is_not_answered(self) -> None:
        store = Waiting()
        store.post(traces.REQUEST, 0, to_text(self.REQUEST))
        with reporting(store):
            store.post(traces.REQUEST, 0, to_text(replace(self.REQUEST, id="two")))
            store.wait_for(traces.answer_key("two"), 1, "error")
        assert store.read(traces.answer_key("one")) == {}
