"""The pending faults of one process, and the record of the faults that happened. Standard library only."""

from __future__ import annotations

import threading
from pathlib import Path

from strategies.testing.faults.plan import Fault, Faults, Moment


class Pending:
    """The faults of one process that have not happened yet.

    Args:
        faults: the faults of the whole run.
        rank: the rank of this process.
    """

    def __init__(self, faults: Faults, rank: int) -> None:
        self._faults, self._rank = faults, rank
        self._happened: set[int] = set()
        self._lock = threading.Lock()

    def due(self, at: Moment, end: int) -> list[tuple[int, Fault]]:
        """Returns (index, fault) for the pending faults of a moment whose step is before `end`."""
        return [
            (index, fault)
            for index, fault in enumerate(self._faults.faults)
            if fault.at == at and fault.rank in (None, self._rank) and fault.step < end and not self._has(index)
        ]

    def take(self, index: int) -> bool:
        """Records that a fault happens now; returns False if it has happened before."""
        with self._lock:
            if self._has(index):
                return False
            self._happened.add(index)
            path = self._path(index)
            if path is not None:
                path.parent.mkdir(parents=True, exist_ok=True)
                path.touch()
            return True

    def is_record(self, path: str) -> bool:
        """Returns True for the folder of the record, and for a path in it."""
        return self._faults.record is not None and Path(self._faults.record) in (Path(path), *Path(path).parents)

    def _has(self, index: int) -> bool:
        path = self._path(index)
        if path is not None and index not in self._happened and path.exists():
            self._happened.add(index)
        return index in self._happened

    def _path(self, index: int) -> Path | None:
        # One file for each rank: a fault of all ranks happens to each of them.
        return None if self._faults.record is None else Path(self._faults.record) / f"fault-{index}-rank-{self._rank}"
