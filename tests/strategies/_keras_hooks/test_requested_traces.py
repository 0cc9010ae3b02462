"""Traces on request: in this process with a reporter of its own, and from a running job of two ranks."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies import monitoring, status
from strategies.monitoring import this_process, traces
from strategies.monitoring.client import Client
from strategies.monitoring.job_status import JobStatus
from strategies.monitoring.reports import from_text
from strategies.monitoring.store import MemoryStore
from strategies.tracing.events import STEPS
from strategies.tracing.job_trace import JobTrace
from strategies.tracing.recording import StepRecorder
from tests.processes import Programs
from tests.strategies.tracing.checks import names_on, read_valid

LIMIT_SECONDS = 120
ASK_SECONDS = 60
X = np.ones((48, 4), "float32")


class Asking(keras.callbacks.Callback):
    """Posts requests as the server does: by batch, with the first step and the number of steps."""

    def __init__(self, reporter: monitoring.Reporter, requests: dict[int, tuple[int, int]]) -> None:
        super().__init__()
        self.reporter, self.requests = reporter, requests

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if batch in self.requests:
            assert self.reporter.on_trace_request is not None
            self.reporter.on_trace_request(monitoring.TraceRequest(f"id{batch}", *self.requests.pop(batch)))


@pytest.fixture
def store() -> MemoryStore:
    return MemoryStore()


@pytest.fixture
def reporter(monkeypatch: pytest.MonkeyPatch, store: MemoryStore) -> monitoring.Reporter:
    """The reporter of this process, without its thread."""
    made = monitoring.Reporter(0, 1, store)
    monkeypatch.setattr(this_process, "_reporter", made)
    monkeypatch.setattr(this_process, "_has_begun", True)
    return made


@pytest.fixture
def answered(reporter: monitoring.Reporter, store: MemoryStore) -> Callable[..., dict[str, traces.TraceAnswer]]:
    """Trains twelve steps, and returns the answers to requests, also in `found` if the training fails."""

    def run(
        requests: dict[int, tuple[int, int]],
        *,
        callbacks: Sequence[keras.callbacks.Callback] = (),
        found: dict[str, traces.TraceAnswer] | None = None,
        **options: Any,
    ) -> dict[str, traces.TraceAnswer]:
        found = {} if found is None else found
        ids = [f"id{batch}" for batch in requests]
        with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
            model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(2)])
            model.compile("sgd", "mse", **options)
        asking = Asking(reporter, requests)
        try:
            model.fit(X, X[:, :2], batch_size=8, epochs=2, verbose=0, callbacks=[asking, *callbacks])
        finally:
            posted = {each: store.read(traces.answer_key(each)) for each in ids}
            for each, own in posted.items():
                if own:
                    found[each] = traces.TraceAnswer.from_json(from_text(own[0].text))
        assert reporter.on_trace_request is None
        return found

    return run


def steps_of(answer: traces.TraceAnswer) -> list[str]:
    return names_on(JobTrace.from_texts([answer.events]), STEPS)


def test_steps_over_the_end_of_an_epoch(answered: Any) -> None:
    """The request at batch 3 comes during that at batch 2."""
    found = answered({2: (4, 3), 3: (20, 1)})
    assert steps_of(found["id2"]) == ["step 4", "step 5", "step 6"]
    assert found["id3"].error == "this rank records another trace"


def test_executions_of_several_steps(answered: Any) -> None:
    assert steps_of(answered({1: (2, 3)}, steps_per_execution=2)["id1"]) == ["steps 2 to 3", "steps 4 to 5"]


def test_a_request_within_an_execution_begins_with_the_next(answered: Any) -> None:
    """Executions begin after 0, 3, 6 and 9 steps."""
    assert steps_of(answered({2: (4, 1)}, steps_per_execution=3)["id2"]) == ["steps 6 to 8"]


def test_the_training_ends_meanwhile(answered: Any) -> None:
    assert steps_of(answered({2: (10, 50)})["id2"]) == ["step 10", "step 11"]
    assert "ended before" in answered({2: (999, 1)})["id2"].error


def test_a_request_that_comes_too_late(answered: Any) -> None:
    assert answered({5: (1, 2)})["id5"].error == "this rank was already at step 6"


def test_an_error_in_fit_ends_the_record(answered: Any, reporter: monitoring.Reporter, tmp_path: Path) -> None:
    def fail(batch: int, logs: Any) -> None:
        if batch == 4:
            raise OSError("no disk")

    for requests, reason in (({2: (3, 9)}, "failed during the steps"), ({2: (999, 1)}, "ended before the steps")):
        found: dict[str, traces.TraceAnswer] = {}
        with pytest.raises(OSError, match="no disk"):
            answered(requests, found=found, callbacks=[keras.callbacks.LambdaCallback(on_train_batch_end=fail)])
        assert reporter.on_trace_request is None
        assert not reporter.progress.is_training
        assert reason in found["id2"].error
        # Another profile can begin.
        tf.profiler.experimental.start(str(tmp_path))
        tf.profiler.experimental.stop(save=False)


def test_what_fails_does_not_reach_the_training(
    answered: Any, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def fail(*_: Any) -> None:
        raise OSError("no disk")

    # The count of steps goes on from one training to the next.
    for name, step in (("begin", 4), ("end", 16)):
        with monkeypatch.context() as patch:
            patch.setattr(StepRecorder, name, fail)
            assert answered({2: (step, 1)})["id2"].error == "OSError: no disk"
    assert "could not be recorded: OSError: no disk" in caplog.text


@pytest.mark.timeout(LIMIT_SECONDS + 30)
def test_a_running_job_of_two_ranks(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    program = [str(Path(__file__).with_name("watched.py")), str(tmp_path / "end")]
    command = [sys.executable, "-m", "strategies.launch", "--nproc-per-node", "2", "--status-port", "0", *program]
    with Programs(tmp_path, [command]) as programs:
        address = awaited(programs, lambda: programs.output().partition("status: http://")[2].split(" ")[0])
        awaited(programs, lambda: both_train(Client(address).status()))
        path = tmp_path / "timeline.json"
        # A request may be refused until all ranks report that they train: a user asks again.
        awaited(programs, lambda: status.main([address, "--trace", "3", "--output", str(path)]) == 0, ASK_SECONDS)
        (tmp_path / "end").touch()
        assert programs.wait(LIMIT_SECONDS) == [0], programs.output()
    trace = read_valid(path, num_ranks=2)
    assert len([event for event in trace["traceEvents"] if event.get("cat") == "steps"]) == 6
    found = capsys.readouterr()
    # The rank that came last depends on the machine.
    assert "3 collectives" in found.out
    assert f"Wrote {path}" in found.out


def both_train(job: JobStatus) -> bool:
    """Returns True once two ranks report steps, and their speed, which tells how far ahead a request must be."""
    reports = [rank.report for rank in job.ranks if rank.report is not None]
    return [bool(each.total_steps and each.steps_per_second) for each in reports] == [True, True]


def awaited(programs: Programs, condition: Callable[[], Any], seconds: float = LIMIT_SECONDS) -> Any:
    """Returns the first true value of a condition."""
    deadline = time.monotonic() + seconds
    while not (found := condition()):
        assert programs.running(), programs.output()
        assert time.monotonic() < deadline, programs.output()
        time.sleep(0.1)
    return found
