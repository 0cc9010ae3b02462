"""Clocks of several processes, compared by exchanges that none leaves before all have entered."""

from __future__ import annotations

import time
from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup

#: Exchanges by which clocks are compared. The quickest of them count.
NUM_ROUNDS = 30


def offset_to_first(group: ProcessGroup) -> tuple[float, float]:
    """Returns what is to be added to this process' ``time.perf_counter()`` for that of the first of a group, and the
    largest error of it, both in seconds. All processes of the group call it.

    Each process notes when it enters an exchange and when it leaves it. It leaves after all others have entered; so,
    from both directions, the difference of two clocks is known to half of the quickest round trip.
    """
    entered, left = [], []
    for _ in range(NUM_ROUNDS):
        entered.append(time.perf_counter_ns())
        group.barrier()
        left.append(time.perf_counter_ns())
    all_noted = group.gather(tf.constant([[entered, left]], tf.int64)).numpy() / 1e9
    return difference(all_noted[group.rank], all_noted[0])


def difference(own: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Returns what is to be added to a clock for another one, and the largest error of it.

    Args:
        own: when exchanges were entered, and when they were left, by the one clock.
        other: by the other one.
    """
    (entered, left), (other_entered, other_left) = own, other
    # The other has left after this one entered, and has entered before this one left.
    most = min(end - start for end, start in zip(other_left, entered, strict=True))
    least = max(start - end for start, end in zip(other_entered, left, strict=True))
    return float(most + least) / 2, float(most - least) / 2
