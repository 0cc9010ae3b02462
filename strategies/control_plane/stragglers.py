"""Ranks that hold the others up, from the share of time in which each waits in collectives. Pure.

Who is looked at once a second has waited about as often as it was found waiting: that costs no step anything.
"""

from __future__ import annotations

import threading
from collections.abc import Sequence

# Fewer looks tell nothing; a difference of shares below this is not worth a word.
_LEAST_LOOKS = 20
_LEAST_DIFFERENCE = 0.25


class WaitingShares:
    """Counts how often this process was found waiting, by who has looked, since it was last asked."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._looks: dict[str, list[int]] = {}

    def note(self, source: str, is_waiting: bool) -> None:
        """Counts one look.

        Args:
            source: names who looks; each looks at other collectives, equally often.
            is_waiting: True if a collective was pending.
        """
        with self._lock:
            looks = self._looks.setdefault(source, [0, 0])
            looks[0] += 1
            looks[1] += is_waiting

    def taken(self) -> tuple[int, int]:
        """Returns the numbers of looks and of waits, of the source that found it waiting most; counts anew."""
        with self._lock:
            looks = max(self._looks.values(), key=lambda each: each[1], default=[0, 0])
            self._looks = {}
        return looks[0], looks[1]


def stragglers(looks: Sequence[Sequence[int]]) -> str | None:
    """Returns a sentence that names the ranks for which the others wait; None if there are none.

    Args:
        looks: what :meth:`WaitingShares.taken` returned on each rank.
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
