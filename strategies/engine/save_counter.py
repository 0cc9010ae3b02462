"""Waits for files that rank 0 writes and other processes read, without a collective.

A model that is loaded outside any scope belongs to its process alone, so no collective can be run: rank 0 may be the
only process that loads, or that has saved. All processes count how often they save each path. Rank 0 announces in the
key-value store of the job which save it has written, and a process that has called ``save`` as many times waits for
that announcement, not for an older file of the same name.
"""

from __future__ import annotations

import logging
import os
import pathlib
import time
import weakref

from strategies.control_plane import KeyValueStore

_logger = logging.getLogger(__name__)

#: The longest wait for a file that this process has left rank 0 to write.
SAVED_SECONDS = 300.0
#: The longest wait for a file that nobody is writing: rank 0 alone may be about to save it.
UNKNOWN_SECONDS = 10.0

_POLL_SECONDS = 0.05
_LOG_AFTER_SECONDS = 10.0
_NANOSECONDS = 10**9


class SaveCounter:
    """Counts how often a process of a job has saved each path.

    Args:
        rank: the rank of the process.
        job: a number of this strategy, the same on all ranks; other strategies of these processes count for themselves.
        store: the key-value store of the job; None if it has none, as in elastic jobs.
    """

    def __init__(self, rank: int, job: int, store: KeyValueStore | None) -> None:
        self.rank = rank
        self._job = job
        self._store = store
        self._counts: dict[pathlib.Path, int] = {}
        self._times: dict[pathlib.Path, int] = {}
        _all.add(self)

    @property
    def hears_of_saves(self) -> bool:
        """True if rank 0 can announce its saves."""
        return self._store is not None

    def count(self, path: pathlib.Path) -> int:
        """Counts one more save of ``path`` and returns the number of saves by this process."""
        key = path.absolute()
        self._counts[key] = self._counts.get(key, 0) + 1
        self._times[key] = time.monotonic_ns()
        return self._counts[key]

    def announce(self, path: pathlib.Path, number: int, modified_ns: int) -> None:
        """Tells all processes that ``path`` is now the file of save `number`, with its modification time."""
        if self._store is not None:
            self._store.post(self._key(path), f"{number} {modified_ns}")

    def is_saved(self, path: pathlib.Path, number: int) -> bool:
        """Returns True if ``path`` is the file of save `number` or a later one; without a store, if it exists."""
        if self._store is None:
            return path.exists()
        announced = self._store.read(self._key(path)).get(0, "0 0")
        written, modified_ns = map(int, announced.split())
        try:
            # A network file system may show this process the file before it for some time. Some keep whole seconds.
            is_seen = path.stat().st_mtime_ns // _NANOSECONDS >= modified_ns // _NANOSECONDS
        except OSError:
            return False
        return written >= number and is_seen

    def _key(self, path: pathlib.Path) -> str:
        return f"saved {self._job} {path.absolute()}"

    def saved_at(self, path: pathlib.Path) -> int:
        """Returns the time of this process' last save of ``path`` (monotonic, nanoseconds), 0 if there is none."""
        return self._times.get(path.absolute(), 0)

    def last(self, path: pathlib.Path) -> int:
        """Returns how often this process has saved ``path`` so far."""
        return self._counts.get(path.absolute(), 0)


def unfinished(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns the unfinished versions of ``path`` in its folder, those left by killed programs included."""
    return [left for left in path.parent.glob(".*.unfinished.*") if left.name.endswith(f".unfinished.{path.name}")]


def name_unfinished(path: pathlib.Path) -> pathlib.Path:
    """Returns the path at which to write ``path``: same folder, for an atomic rename, and same extension."""
    return path.with_name(f".{os.getpid()}.unfinished.{path.name}")


#: The counters of this process' multi-process strategies, for as long as these live.
_all: weakref.WeakSet[SaveCounter] = weakref.WeakSet()


def save_counters() -> list[SaveCounter]:
    """Returns the counters of this process' multi-process strategies."""
    return list(_all)


def wait_for(path: pathlib.Path) -> None:
    """Waits until rank 0 has written ``path``, a file or folder, or until a time limit is over.

    Call it on ranks other than 0. For a path on which this process has called ``save``, it waits for the file of that
    save; for another path, any existing file is accepted.
    """
    counter = max(_all, key=lambda each: each.saved_at(path), default=None)
    number = 0 if counter is None else counter.last(path)

    def is_ready() -> bool:
        return counter.is_saved(path, number) if counter is not None and number else path.exists()

    if number and counter is not None and not counter.hears_of_saves:
        _logger.warning(
            "%s may be outdated: rank 0 cannot announce what it has written, as this job has no key-value store (it is "
            "elastic, or started by mpirun). Load the file within strategy.scope() on all ranks, or on rank 0.",
            path,
        )
    begin = time.monotonic()
    is_logged = False
    while not is_ready():
        waited = time.monotonic() - begin
        if waited > SAVED_SECONDS or (not number and waited > UNKNOWN_SECONDS and not unfinished(path)):
            if path.exists():
                _logger.warning("%s may be outdated: rank 0 has not saved it within %.0f s.", path, waited)
            return
        if waited > _LOG_AFTER_SECONDS and not is_logged:
            is_logged = True
            _logger.warning("Waiting for rank 0 to write %s. All processes must see the same folder.", path)
        time.sleep(_POLL_SECONDS)
