"""Files that are either complete or absent."""

from pathlib import Path

import pytest

from strategies.atomic_file import atomic_file


def test_replaces_the_file_when_it_is_whole(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with atomic_file(path) as part:
        part.write_text("new")
        assert path.read_text() == "old"
    assert path.read_text() == "new"
    assert list(tmp_path.iterdir()) == [path]


def _fail_to_write(path: Path) -> None:
    with atomic_file(path) as part:
        part.write_text("ne")
        raise OSError("disk full")


def test_leaves_the_old_file_and_nothing_else_after_an_error(tmp_path: Path) -> None:
    path = tmp_path / "state.json"
    path.write_text("old")
    with pytest.raises(OSError, match="disk full"):
        _fail_to_write(path)
    assert path.read_text() == "old"
    assert list(tmp_path.iterdir()) == [path]
