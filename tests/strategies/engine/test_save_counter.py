"""Files that another process writes: which save a file belongs to, and how long a process waits for it."""

from __future__ import annotations

import os
import pathlib
from collections.abc import Iterator

import pytest

from strategies.control_plane import KeyValueStore
from strategies.engine import save_counter
from strategies.engine.save_counter import SaveCounter
from tests.clock import Clock
from tests.logs import own_records


@pytest.fixture
def store() -> Iterator[KeyValueStore]:
    """Yields the store of rank 0, which the counters of all ranks read here."""
    made = KeyValueStore(0, 1, {})
    yield made
    made.close("")


def test_rank_0_announces_which_save_it_has_written(tmp_path: pathlib.Path, store: KeyValueStore) -> None:
    path, other = tmp_path / "a file", tmp_path / ".." / tmp_path.name / "other"
    rank_0, rank_1, another = SaveCounter(0, 5, store), SaveCounter(1, 5, store), SaveCounter(1, 6, store)
    assert [rank_1.count(path), rank_1.count(other), rank_1.count(path)] == [1, 1, 2]
    assert rank_1.last(path) == 2
    assert not rank_1.is_saved(path, 1)
    path.touch()  # An older file of the same name, from any program.
    assert not rank_1.is_saved(path, 1)
    for number in (1, 2, 1000):
        rank_0.announce(path, number, path.stat().st_mtime_ns)
        assert rank_1.is_saved(path, number)
        assert rank_1.is_saved(path, 1)
        assert not rank_1.is_saved(path, number + 1)
        assert not another.is_saved(path, number)
    assert not rank_1.is_saved(tmp_path / "another file", 1)


def test_the_file_of_an_announced_save_is_seen(tmp_path: pathlib.Path, store: KeyValueStore) -> None:
    """A network file system shows other hosts the file before it for some time, or none, and may keep whole seconds."""
    path = tmp_path / "a file"
    rank_0, rank_1 = SaveCounter(0, 5, store), SaveCounter(1, 5, store)
    rank_0.announce(path, 1, 1_700_000_005_900_000_000)
    assert not rank_1.is_saved(path, 1)
    path.touch()
    for nanoseconds, is_seen in ((1_700_000_004_950_000_000, False), (1_700_000_005_000_000_000, True)):
        os.utime(path, ns=(0, nanoseconds))
        assert rank_1.is_saved(path, 1) == is_seen


def test_without_a_store_a_file_that_exists_is_read_and_said_to_be_uncertain(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    path = tmp_path / "a file"
    rank_0, rank_1 = SaveCounter(0, 5, None), SaveCounter(1, 5, None)
    rank_1.count(path)
    assert not rank_1.is_saved(path, 1)
    path.touch()
    rank_0.announce(path, 1, 0)
    save_counter.wait_for(path)
    assert "may be outdated: rank 0 cannot announce" in caplog.text


def test_waiting_ends(
    tmp_path: pathlib.Path,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    store: KeyValueStore,
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
    assert seconds() == 0
    counter = SaveCounter(1, 5, store)
    counter.count(path)
    assert not own_records(caplog)
    assert seconds() >= 0.4
    assert "may be outdated" in caplog.text
    SaveCounter(0, 5, store).announce(path, 1, path.stat().st_mtime_ns)
    assert seconds() == 0
