"""Waits for files that rank 0 writes and other processes read, without a collective.

A model that is loaded outside any scope belongs to its process alone, so no collective can be run: rank 0 may be the
only process that loads, or that has saved. A process therefore polls the file. The modification time identifies the
save that made the file: its sub-second part encodes the job and the number of times that the job has saved this path. A
process that has called ``save`` as many times waits for that file, not for an older one of the same name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import time
import weakref

_logger = logging.getLogger(__name__)

#: The longest wait for a file that this process has left rank 0 to write.
SAVED_SECONDS = 300.0
#: The longest wait for a file that nobody is writing: rank 0 alone may be about to save it.
UNKNOWN_SECONDS = 10.0

_POLL_SECONDS = 0.05
_LOG_AFTER_SECONDS = 10.0
# The two numbers are stored in microseconds, since not all file systems keep a finer time.
_NUM_JOBS, _NUM_SAVES = 1000, 1000


class SaveCounter:
    """Counts how often a process of a job has saved each path.

    Args:
        rank: the rank of the process.
        job: any integer >= 0, the same on all ranks.
    """

    def __init__(self, rank: int, job: int) -> None:
        self.rank = rank
        self._job = 1 + job % (_NUM_JOBS - 1)  # Never 0: a file system without sub-second times reports 0.
        self._counts: dict[pathlib.Path, int] = {}
        self._times: dict[pathlib.Path, int] = {}
        _all.add(self)

    def count(self, path: pathlib.Path) -> int:
        """Counts one more save of ``path`` and returns the number of saves by this process."""
        key = path.absolute()
        self._counts[key] = self._counts.get(key, 0) + 1
        self._times[key] = time.monotonic_ns()
        return self._counts[key]

    def mark(self, path: pathlib.Path, number: int) -> None:
        """Marks ``path`` as save `number` of this job, in its modification time (nanoseconds since 1970)."""
        now = time.time_ns()
        part = (self._job * _NUM_SAVES + number % _NUM_SAVES) * 1000
        whole = now // 10**9 - (now % 10**9 < part)  # Never in the future.
        with contextlib.suppress(OSError):
            os.utime(path, ns=(now, whole * 10**9 + part))

    def is_saved(self, path: pathlib.Path, number: int) -> bool:
        """Returns True if ``path`` comes from save `number` of this job or a later one, or has a whole-second time."""
        try:
            part = path.stat().st_mtime_ns % 10**9
        except OSError:
            return False
        if part == 0:
            return True  # The file system keeps whole seconds.
        job, made = divmod(part // 1000, _NUM_SAVES)
        return job == self._job and (made - number) % _NUM_SAVES < _NUM_SAVES // 2

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
