"""Files that another process writes: which save a file belongs to, and how long a process waits for it."""

from __future__ import annotations

import os
import pathlib
import time

import pytest

from strategies.engine import save_counter
from strategies.engine.save_counter import SaveCounter
from tests.clock import Clock


def test_a_file_identifies_its_save(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "a file"
    rank_0, rank_1, another = SaveCounter(0, 5), SaveCounter(1, 5), SaveCounter(1, 6)
    assert [rank_1.count(path), rank_1.count(tmp_path / ".." / tmp_path.name / "other"), rank_1.count(path)] == [
        1,
        1,
        2,
    ]
    assert rank_1.last(path) == 2
    assert not rank_1.is_saved(path, 1)
    path.touch()  # An older file of the same name, from any program.
    os.utime(path, ns=(0, 1234567000))
    assert not rank_1.is_saved(path, 1)
    for number in (1, 2, 999, 1000, 1001):
        before = time.time_ns()
        rank_0.mark(path, number)
        assert before - 10**9 < path.stat().st_mtime_ns <= time.time_ns()
        assert rank_1.is_saved(path, number)
        assert rank_1.is_saved(path, max(1, number - 1))
        assert not rank_1.is_saved(path, number + 1)
        assert not another.is_saved(path, number)
    os.utime(path, ns=(0, 10**9))
    assert rank_1.is_saved(path, 7), "A file system that keeps whole seconds cannot tell."


def test_waiting_ends(
    tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(save_counter, "UNKNOWN_SECONDS", 0.05)
    monkeypatch.setattr(save_counter, "SAVED_SECONDS", 0.4)
    clock = Clock()
    monkeypatch.setattr(save_counter, "time", clock)
    path = tmp_path / "a file"

    def seconds() -> float:
        begin = clock.monotonic()
        save_counter.wait_for(path)
        return clock.monotonic() - begin

    assert 0.05 <= seconds() < 0.4, "Nobody writes it."
    save_counter.name_unfinished(path).touch()
    assert seconds() >= 0.4, "Somebody does."
    path.touch()
    # The file is of no save of job 5: an arbitrary time stamp matches in one of two thousand runs.
    os.utime(path, ns=(0, 500_000_000))
    assert seconds() == 0
    counter = SaveCounter(1, 5)
    counter.count(path)
    assert not caplog.records
    assert seconds() >= 0.4
    assert "may be outdated" in caplog.text
    SaveCounter(0, 5).mark(path, 1)
    assert seconds() == 0
