"""The ranks that slow the others down, found from the share of time in which each waits in collectives. Pure.

A process is sampled once a second: the share of samples in which it waits is about its share of time in waits. This
costs the steps nothing.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

# Fewer samples show nothing; a smaller difference of shares is not reported.
_LEAST_LOOKS = 20
_LEAST_DIFFERENCE = 0.25


class WaitingShares:
    """Counts the samples in which this process was waiting, by source, since they were last taken."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: dict[str, list[int]] = {}

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
    most = max(shares)
    slow = [rank for rank, share in enumerate(shares) if share < most - _LEAST_DIFFERENCE and share < most / 2]
    if not slow or 2 * len(slow) > len(shares):
        return None
    named = ", ".join(f"rank {rank} ({shares[rank]:.0%})" for rank in slow)
    return (
        f"the others wait for {named}: they spend up to {most:.0%} of their time in collectives. Look at the input and "
        "the load of that machine."
    )
