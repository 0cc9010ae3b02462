"""The place at which ranks and launchers leave texts for the status of their job, under a key and a number.

Two kinds: a folder of the launcher, which outlives each rank, and, where another launcher has started the ranks, the
key-value store of the job, of which rank 0 has everything.
"""

from __future__ import annotations

import contextlib
import fcntl
import json
import os
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from strategies.atomic_file import atomic_file
from strategies.control_plane import KeyValueStore

_SUFFIX = ".json"
_PREFIX = "status "
#: The most bytes of a text, as it is sent. A process that gets a message of more than 16 MiB takes the sender for gone.
MAX_SENT_BYTES = 1 << 23


@dataclass(frozen=True)
class Posted:
    """A text of a store, and the time at which it arrived there, as `time.time` gives it."""

    text: str
    arrived: float


def num_sent_bytes(text: str) -> int:
    """Returns the number of bytes that a text takes in a message, which escapes it."""
    return len(json.dumps(text))


class ReportStore(Protocol):
    """Texts by key and number: a rank, or the node rank of a launcher."""

    def post(self, key: str, number: int, text: str, *, to_all: bool = False) -> None:
        """Replaces a text; raises OSError if it cannot. Unless it is `to_all`, only the server needs to get it."""

    def read(self, key: str) -> Mapping[int, Posted]:
        """Returns the texts under a key, by number."""

    def get(self, key: str, number: int) -> str | None:
        """Returns one text; None if there is none."""

    def forget(self, key: str) -> None:
        """Removes all texts under a key."""


class MemoryStore:
    """A store of this process alone, which serves its own status."""

    def __init__(self) -> None:
        self._texts: dict[str, dict[int, Posted]] = {}

    def post(self, key: str, number: int, text: str, *, to_all: bool = False) -> None:
        """Replaces a text."""
        self._texts.setdefault(key, {})[number] = Posted(text, time.time())

    def read(self, key: str) -> dict[int, Posted]:
        """Returns the texts under a key, by number."""
        return dict(self._texts.get(key, {}))

    def get(self, key: str, number: int) -> str | None:
        """Returns one text; None if there is none."""
        posted = self._texts.get(key, {}).get(number)
        return None if posted is None else posted.text

    def forget(self, key: str) -> None:
        """Removes all texts under a key."""
        self._texts.pop(key, None)


class FolderStore:
    """A store in a folder: a file for each text.

    Args:
        folder: an existing folder that only this user can enter.

    Example:

        store = FolderStore(folder)
        store.post("rank", 0, "{}")
        assert store.read("rank")[0].text == "{}"
    """

    def __init__(self, folder: str | Path) -> None:
        self.folder = Path(folder)

    def claim(self, name: str) -> bool:
        """Claims a name until this process ends; returns False if another process that still runs has claimed it."""
        try:
            claim = os.open(self.folder / f"claim-{name}", os.O_WRONLY | os.O_CREAT, 0o600)
        except OSError:
            # The first report says what is wrong.
            return True
        try:
            # Not `flock`, whose locks forked children would inherit. The file stays open: to close it ends the lock.
            fcntl.lockf(claim, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except (BlockingIOError, PermissionError):
            os.close(claim)
            return False
        except OSError:
            # A file system without locks.
            pass
        return True

    def post(self, key: str, number: int, text: str, *, to_all: bool = False) -> None:
        """Replaces a text; raises OSError if the disk is full or the folder is gone."""
        with atomic_file(self.folder / f"{key}.{number}{_SUFFIX}") as part:
            part.write_text(text)

    def read(self, key: str) -> dict[int, Posted]:
        """Returns the texts under a key, by number."""
        found = {}
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f"{key}.*{_SUFFIX}"):
                number = path.name.removeprefix(f"{key}.").removesuffix(_SUFFIX)
                with contextlib.suppress(OSError):
                    if number.isdecimal():
                        found[int(number)] = Posted(path.read_text(errors="replace"), path.stat().st_mtime)
        return found

    def get(self, key: str, number: int) -> str | None:
        """Returns one text; None if there is none."""
        try:
            return (self.folder / f"{key}.{number}{_SUFFIX}").read_text(errors="replace")
        except OSError:
            return None

    def forget(self, key: str, *, but: int | None = None) -> None:
        """Removes the texts under a key, such as those of an earlier round, but for that of one number."""
        with contextlib.suppress(OSError):
            for path in self.folder.glob(f"{key}.*{_SUFFIX}"):
                if path.name != f"{key}.{but}{_SUFFIX}":
                    path.unlink(missing_ok=True)


class JobStore:
    """A store in the key-value store of a job. Rank 0 has all texts; the others have those that rank 0 posts.

    Args:
        store: the key-value store.
    """

    def __init__(self, store: KeyValueStore) -> None:
        self._store = store
        self._arrived: dict[tuple[str, int], float] = {}
        store.listen(self._note)

    def post(self, key: str, number: int, text: str, *, to_all: bool = False) -> None:
        """Replaces this process' text under a key; its number is the rank. Raises OSError if the text is too long."""
        if (size := num_sent_bytes(text)) > MAX_SENT_BYTES:
            raise OSError(f"a text for {key!r} takes {size:,} bytes, more than {MAX_SENT_BYTES:,}")
        self._note(f"{_PREFIX}{key}", self._store.rank, text)
        post = self._store.post if to_all else self._store.post_to_rank_0
        post(f"{_PREFIX}{key}", text)

    def read(self, key: str) -> dict[int, Posted]:
        """Returns the texts under a key that this process has, by rank."""
        texts = self._store.read(f"{_PREFIX}{key}")
        now = time.time()
        return {rank: Posted(text, self._arrived.get((f"{_PREFIX}{key}", rank), now)) for rank, text in texts.items()}

    def get(self, key: str, number: int) -> str | None:
        """Returns one text; None if there is none."""
        return self._store.read(f"{_PREFIX}{key}").get(number)

    def forget(self, key: str) -> None:
        """Removes all texts under a key from this process' copy."""
        self._store.forget(f"{_PREFIX}{key}")
        for each in [each for each in self._arrived.copy() if each[0] == f"{_PREFIX}{key}"]:
            self._arrived.pop(each, None)

    def _note(self, key: str, rank: int, text: str) -> None:
        if key.startswith(_PREFIX):
            self._arrived[key, rank] = time.time()
