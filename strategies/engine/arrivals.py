"""Files that rank 0 writes and other processes read, when they read without meeting rank 0.

A model that is loaded outside any scope belongs to its process alone, so there is nobody to meet: rank 0 may be the
only one that loads, or that has saved. A process waits for a file by looking at it. Which of all savings of a path has
made the file, its time of modification says: below the second, it holds the job and how often the job has saved this
path. So a process that has called ``save`` as often waits for that file, not for an older one of the same name.
"""

from __future__ import annotations

import contextlib
import logging
import os
import pathlib
import time
import weakref

_logger = logging.getLogger(__name__)

#: The time that a process waits for a file that it has left to rank 0 to write.
SAVED_SECONDS = 300.0
#: The time that it waits for a file of which it knows nothing, if nobody is writing it: rank 0 alone may save it.
UNKNOWN_SECONDS = 10.0

_POLL_SECONDS = 0.05
_TELL_AFTER_SECONDS = 10.0
# Of microseconds, since not all file systems keep more.
_NUM_JOBS, _NUM_SAVES = 1000, 1000


class Savings:
    """Counts how often a process of a job has saved each path.

    Args:
        rank: of the process.
        job: any number, the same on all ranks, from 0.
    """

    def __init__(self, rank: int, job: int) -> None:
        self.rank = rank
        self._job = 1 + job % (_NUM_JOBS - 1)  # Never 0, as the parts of a second are where they are not kept.
        self._counts: dict[pathlib.Path, int] = {}
        self._orders: dict[pathlib.Path, int] = {}
        _all.add(self)

    def count(self, path: pathlib.Path) -> int:
        """Returns how often this process has saved ``path``, with this time."""
        key = path.absolute()
        self._counts[key] = self._counts.get(key, 0) + 1
        self._orders[key] = time.monotonic_ns()
        return self._counts[key]

    def mark(self, path: pathlib.Path, number: int) -> None:
        """Writes into the time of ``path``, in nanoseconds since 1970, that it is saving `number` of this job."""
        now = time.time_ns()
        part = (self._job * _NUM_SAVES + number % _NUM_SAVES) * 1000
        whole = now // 10**9 - (now % 10**9 < part)  # Never in the future.
        with contextlib.suppress(OSError):
            os.utime(path, ns=(now, whole * 10**9 + part))

    def is_there(self, path: pathlib.Path, number: int) -> bool:
        """True if saving `number` of this job, or a later one, made ``path``, or if its time is in whole seconds."""
        try:
            part = path.stat().st_mtime_ns % 10**9
        except OSError:
            return False
        if part == 0:
            return True  # The file system keeps whole seconds.
        job, made = divmod(part // 1000, _NUM_SAVES)
        return job == self._job and (made - number) % _NUM_SAVES < _NUM_SAVES // 2

    def order_of(self, path: pathlib.Path) -> int:
        """Returns a number that is the larger, the later this process has last saved ``path``."""
        return self._orders.get(path.absolute(), 0)

    def last(self, path: pathlib.Path) -> int:
        """Returns how often this process has saved ``path`` so far."""
        return self._counts.get(path.absolute(), 0)


def unfinished(path: pathlib.Path) -> list[pathlib.Path]:
    """Returns the files and folders beside ``path`` that are to become it, or were to when their program was killed."""
    return [left for left in path.parent.glob(".*.unfinished.*") if left.name.endswith(f".unfinished.{path.name}")]


def name_unfinished(path: pathlib.Path) -> pathlib.Path:
    """Returns where to write ``path``: beside it, so that it can be moved in one go, and with its ending."""
    return path.with_name(f".{os.getpid()}.unfinished.{path.name}")


#: Of this process' strategies that others take part in, for as long as these live.
_all: weakref.WeakSet[Savings] = weakref.WeakSet()


def all_savings() -> list[Savings]:
    """Returns those of the strategies of this process that others take part in."""
    return list(_all)


def wait_for(path: pathlib.Path) -> None:
    """Returns when rank 0 has written ``path``, a file or folder, or when that is not to be expected any more.

    For a process that is not rank 0. What it has itself called ``save`` for is waited for; of other paths, what is
    there is taken as it is.
    """
    savings = max(_all, key=lambda each: each.order_of(path), default=None)
    number = 0 if savings is None else savings.last(path)

    def is_there() -> bool:
        return savings.is_there(path, number) if savings is not None and number else path.exists()

    begin = time.monotonic()
    told = False
    while not is_there():
        waited = time.monotonic() - begin
        if waited > SAVED_SECONDS or (not number and waited > UNKNOWN_SECONDS and not unfinished(path)):
            if path.exists():
                _logger.warning("%s may be an older one: rank 0 has not saved it again within %.0f s.", path, waited)
            return
        if waited > _TELL_AFTER_SECONDS and not told:
            told = True
            _logger.warning("Waiting for rank 0 to write %s. All processes must see the same folder.", path)
        time.sleep(_POLL_SECONDS)
