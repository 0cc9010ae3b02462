"""The images of one process that could not be decoded: their number and their first names."""

from __future__ import annotations

import logging
import threading

#: Number of names that are kept and logged; further images are only counted.
MAX_NAMES = 10

_log = logging.getLogger(__name__)


class Skipped:
    """The images that could not be read or decoded; one warning for each of the first few.

    Their rows stay in their batches, blank and with weight 0, so that batches are the same for every number of
    processes. Safe to use from many threads.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._reasons: dict[str, str] = {}

    @property
    def count(self) -> int:
        """The number of distinct images."""
        with self._lock:
            return len(self._reasons)

    @property
    def names(self) -> tuple[str, ...]:
        """The first `MAX_NAMES` names, in the order of occurrence."""
        with self._lock:
            return tuple(self._reasons)[:MAX_NAMES]

    def add(self, name: str, reason: str) -> None:
        """Counts an image, and logs its first occurrence."""
        with self._lock:
            if name in self._reasons:
                return
            self._reasons[name] = reason
            number = len(self._reasons)
        if number <= MAX_NAMES:
            _log.warning("skipped: %s: %s", name, reason)
        if number == MAX_NAMES:
            _log.warning("skipped: %d images so far; further ones are only counted", number)
