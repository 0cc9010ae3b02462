"""The ranks that slow the others down, found from the share of time in which each waits in collectives. Pure.

A process is sampled once a second: the share of samples in which it waits is about its share of time in waits. This
costs the steps nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence

# Fewer samples show nothing; a smaller difference of shares is not reported.
_LEAST_LOOKS = 20
_LEAST_DIFFERENCE = 0.25
# A few samples show only what is extreme.
_SHARE_OF_SLOW_NOW, _SHARE_OF_OTHERS_NOW = 0.1, 0.7


class WaitingShares:
    """Counts the samples in which this process was waiting, by source, since they were last taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: dict[str, list[int]] = {}
        self._sources: dict[str, tuple[Callable[[], bool], Callable[[], bool]]] = {}

    def sample_from(
        self, source: str, is_waiting: Callable[[], bool] | None, is_current: Callable[[], bool] = lambda: True
    ) -> None:
        """Registers a function that returns True if a collective is pending; None removes it.

        Args:
            source: names the caller.
            is_waiting: the function.
            is_current: returns False if `is_waiting` knows only what was at the last of the rare samples.
        """
        with self._lock:
            self._sources.pop(source, None)
            if is_waiting is not None:
                self._sources[source] = is_waiting, is_current

    def is_waiting(self) -> bool | None:
        """Returns True if a collective of any source is pending now; None if there are no sources."""
        with self._lock:
            sources = list(self._sources.values())
        return any(is_waiting() for is_waiting, _ in sources) if sources else None

    def is_current(self) -> bool:
        """Returns True if `is_waiting` is about this moment, for all sources."""
        with self._lock:
            sources = list(self._sources.values())
        return all(is_current() for _, is_current in sources)

    def note(self, source: str, is_waiting: bool) -> None:
        """Counts one sample.

        Args:
            source: names the caller; each source samples other collectives, all of them equally often.
            is_waiting: True if a collective was pending.
        """
        with self._lock:
            looks = self._looks.setdefault(source, [0, 0])
            looks[0] += 1
            looks[1] += is_waiting

    def taken(self) -> tuple[int, int]:
        """Returns the numbers of samples and of waits of the source with the most waits, and resets all counts."""
        with self._lock:
            looks = max(self._looks.values(), key=lambda each: each[1], default=[0, 0])
            self._looks = {}
        return looks[0], looks[1]


def stragglers(looks: Sequence[Sequence[int]]) -> str | None:
    """Returns a sentence that names the ranks for which the others wait; None if there are none.

    Args:
        looks: the result of :meth:`WaitingShares.taken` on each rank.
    """
    if len(looks) < 2 or min(total for total, _ in looks) < _LEAST_LOOKS:
        return None
    shares = [waiting / total for total, waiting in looks]
    most, slow = max(shares), slow_ranks(shares)
    if not slow:
        return None
    named = ", ".join(f"rank {rank} ({shares[rank]:.0%})" for rank in slow)
    return (
        f"the others wait for {named}: they spend up to {most:.0%} of their time in collectives. Look at the input and "
        "the load of that machine."
    )


def slow_ranks(shares: Sequence[float]) -> list[int]:
    """Returns the indices of the ranks for which the others wait; none if these are more than half of them.

    Args:
        shares: by rank, the share of its time in which it waits in collectives, of 20 samples or more.
    """
    most = max(shares, default=0.0)
    slow = [rank for rank, share in enumerate(shares) if share < most - _LEAST_DIFFERENCE and share < most / 2]
    return slow if 2 * len(slow) <= len(shares) else []


def slow_ranks_now(shares: Sequence[float]) -> list[int]:
    """Returns the same from a few samples, which show only ranks that hold up all others nearly all the time."""
    slow = [rank for rank, share in enumerate(shares) if share <= _SHARE_OF_SLOW_NOW]
    others = [share for share in shares if share > _SHARE_OF_SLOW_NOW]
    return slow if others and len(slow) <= len(others) and min(others) >= _SHARE_OF_OTHERS_NOW else []
