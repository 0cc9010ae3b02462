"""The texts that launchers share about the status of their job: reports go to node 0, requests to all others."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence
from pathlib import Path

from strategies.launching.messages import Shared
from strategies.monitoring.reports import LAUNCHER, RANK
from strategies.monitoring.store import FolderStore
from strategies.monitoring.traces import ANSWERS, REQUEST

# A launcher's messages have at most 1 MiB, and a character takes up to six bytes there.
_CHARACTERS_PER_PART = 1 << 17


class Sharing:
    """The texts that one launcher shares with the others in one round.

    Args:
        store: the folder of this node.
        round_number: the number of the round; messages of other rounds are ignored.
        is_node_0: True on node 0, which has everything.
    """

    def __init__(self, store: FolderStore, round_number: int, *, is_node_0: bool) -> None:
        self._store, self._round = store, round_number
        self._keys = (REQUEST,) if is_node_0 else (RANK, LAUNCHER, f"{ANSWERS}*")
        self._sent: dict[Path, int] = {}
        self._parts: dict[tuple[str, int], list[str]] = {}

    def outgoing(self) -> list[Shared]:
        """Returns what the others do not have yet."""
        found: list[Shared] = []
        for key, number, path in _files(self._store.folder, self._keys):
            with contextlib.suppress(OSError):
                changed = path.stat().st_mtime_ns
                if self._sent.get(path) != changed:
                    self._sent[path] = changed
                    found += self._messages(key, number, path.read_text(errors="replace"))
        return found

    def take(self, shared: Shared) -> None:
        """Takes a message of another launcher."""
        # A key becomes the name of a file.
        if shared.round != self._round or not shared.key.replace("-", "").isalnum():
            return
        parts = self._parts.setdefault((shared.key, shared.number), [])
        if shared.part == 0:
            parts.clear()
        parts.append(shared.text)
        if len(parts) == shared.num_parts:
            del self._parts[shared.key, shared.number]
            with contextlib.suppress(OSError):
                self._store.post(shared.key, shared.number, "".join(parts))

    def _messages(self, key: str, number: int, text: str) -> list[Shared]:
        size = _CHARACTERS_PER_PART
        pieces = [text[begin : begin + size] for begin in range(0, max(1, len(text)), size)]
        return [Shared(self._round, key, number, part, len(pieces), piece) for part, piece in enumerate(pieces)]


def _files(folder: Path, keys: Sequence[str]) -> Iterator[tuple[str, int, Path]]:
    """Yields the key, the number and the path of each text of some keys."""
    for key in keys:
        for path in sorted(folder.glob(f"{key}.*.json")):
            name, _, number = path.name.removesuffix(".json").rpartition(".")
            if number.isdecimal():
                yield name, int(number), path
