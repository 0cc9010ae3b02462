"""The stores of reports; that of a job is tested with two processes in `test_this_process`."""

from __future__ import annotations

from pathlib import Path

import pytest

from strategies.control_plane import KeyValueStore
from strategies.monitoring.store import FolderStore, JobStore, MemoryStore


@pytest.mark.parametrize("kind", ["folder", "memory"])
def test_texts_by_key_and_number(kind: str, tmp_path: Path) -> None:
    store = FolderStore(tmp_path) if kind == "folder" else MemoryStore()
    store.post("rank", 0, "a")
    store.post("rank", 11, "b")
    store.post("rank", 0, "c", to_all=True)
    store.post("trace-1", 0, "d")
    assert {number: posted.text for number, posted in store.read("rank").items()} == {0: "c", 11: "b"}
    store.forget("rank")
    assert store.read("rank") == {}
    assert store.read("trace-1")[0].text == "d"


def test_one_text_may_be_kept(tmp_path: Path) -> None:
    store = FolderStore(tmp_path)
    for number in (1, 11, 2):
        store.post("launcher", number, "text")
    store.forget("launcher", but=1)
    assert list(store.read("launcher")) == [1]


def test_a_folder_that_is_gone(tmp_path: Path) -> None:
    store = FolderStore(tmp_path / "gone")
    with pytest.raises(OSError, match="No such file"):
        store.post("rank", 0, "a")
    assert store.read("rank") == {}
    store.forget("rank")


def test_unfinished_and_other_files_are_ignored(tmp_path: Path) -> None:
    for name in (".rank.0.json.part", "rank.x.json", "token", "rank.0.txt"):
        (tmp_path / name).write_text("text")
    assert FolderStore(tmp_path).read("rank") == {}


def test_a_text_that_would_end_a_job_is_not_sent() -> None:
    """Its receivers would end the connection."""
    values = KeyValueStore(0, 1, {})
    try:
        store = JobStore(values)
        store.post("trace-1", 0, 2**20 * '"')
        with pytest.raises(OSError, match="takes 16,777,218 bytes, more than 8,388,608"):
            store.post("trace-2", 0, 2**23 * '"')
        assert store.read("trace-2") == {}
    finally:
        values.close("")
