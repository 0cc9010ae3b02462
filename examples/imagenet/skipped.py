"""Counts and names images that could not be used, in one process."""

from __future__ import annotations

import logging
import threading

#: Names that are kept and logged; of more there is only the number.
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
        """The number of different images."""
        with self._lock:
            return len(self._reasons)

    @property
    def names(self) -> tuple[str, ...]:
        """The first few, in the order in which they were met."""
        with self._lock:
            return tuple(self._reasons)[:MAX_NAMES]

    def add(self, name: str, reason: str) -> None:
        """Counts an image; the first time that it is met, it is logged."""
        with self._lock:
            if name in self._reasons:
                return
            self._reasons[name] = reason
            number = len(self._reasons)
        if number <= MAX_NAMES:
            _log.warning("skipped: %s: %s", name, reason)
        if number == MAX_NAMES:
            _log.warning("skipped: %d images so far; further ones are only counted", number)
