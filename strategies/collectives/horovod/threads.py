"""Keeps two of Horovod's threads from fighting for one core.

Gloo 0.28.1's network thread is woken by what a peer sends. If Horovod's own thread holds the lock of that connection at
this moment, the network thread does not wait for the lock: it asks epoll again, which answers at once, until the
scheduler takes the core away. Where both share a core, because the process is pinned to one or the others compute, the
network thread has just pushed aside the very thread that it needs, and burns its slice: 2 to 3 ms for each exchange
(measured on Linux 6.18, one core per process: an all-reduce of 140 kB took 4.3 ms, with this 1.2 ms).

Linux has a policy for threads that never push another aside, and any thread may take it: SCHED_BATCH. The network
thread then runs when the core is free, or in its turn. It costs nothing where there are cores enough.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_THREADS = Path("/proc/self/task")


@contextlib.contextmanager
def network_threads_yield(num_others: int = 0) -> Iterator[None]:
    """The threads that start inside, except the first `num_others` of them, push no other aside. Linux only."""
    before = _thread_ids()
    yield
    # Identifiers ascend in the order of starting.
    for thread in sorted(_thread_ids() - before)[num_others:]:
        # It may be gone, or a container may forbid it; all is only slower then.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _thread_ids() -> set[int]:
    return {int(entry.name) for entry in _THREADS.iterdir()} if _THREADS.is_dir() else set()
