"""Offsets between the clocks of several processes, measured by barriers."""

from __future__ import annotations

import secrets
import time
from collections.abc import Sequence
from pathlib import Path

import tensorflow as tf

from strategies.collectives.process_group import ProcessGroup

#: The number of barriers by which clocks are compared. The quickest of them determine the result.
NUM_ROUNDS = 30


def offset_to_first(group: ProcessGroup) -> tuple[float, float]:
    """Returns the clock offset to the first process of a group, and its maximum error, both in seconds.

    This process' ``time.perf_counter()`` plus the offset is that of the first process. All processes of the group call
    it. Each process notes when it enters a barrier and when it leaves it, which is after all others have entered. So
    the difference of two clocks is bounded from both sides, to within half of the quickest round trip.
    """
    entered, left = [], []
    for _ in range(NUM_ROUNDS):
        entered.append(time.perf_counter_ns())
        group.barrier()
        left.append(time.perf_counter_ns())
    all_noted = group.gather(tf.constant([[entered, left]], tf.int64)).numpy() / 1e9
    return difference(all_noted[group.rank], all_noted[0])


def clock_id() -> str:
    """Returns a text that is the same for all processes that read the same ``time.perf_counter()``.

    On Linux these are the processes of one host, containers included unless they have a time namespace of their own.
    Elsewhere it differs for all processes.
    """
    try:
        boot = Path("/proc/sys/kernel/random/boot_id").read_text(encoding="utf-8")
        return " ".join([boot.strip(), *_time_namespace()])
    except OSError:
        return secrets.token_hex(16)


def _time_namespace() -> list[str]:
    """Returns the offsets of this process' clocks, by which time namespaces differ; none if the kernel has none."""
    try:
        return Path("/proc/self/timens_offsets").read_text(encoding="utf-8").split()
    except OSError:
        return []


def difference(own: Sequence[Sequence[float]], other: Sequence[Sequence[float]]) -> tuple[float, float]:
    """Returns the offset to add to a clock to get the time of another one, and its maximum error.

    Args:
        own: (times of entering, times of leaving) of the same barriers, by the one clock.
        other: the same by the other clock.
    """
    (entered, left), (other_entered, other_left) = own, other
    # The other process leaves after this one enters, and enters before this one leaves.
    most = min(end - start for end, start in zip(other_left, entered, strict=True))
    least = max(start - end for start, end in zip(other_entered, left, strict=True))
    return float(most + least) / 2, float(most - least) / 2
