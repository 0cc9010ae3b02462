"""Scheduling of Horovod's threads: keeps two of them from competing for one core.

The network thread of Gloo (Horovod 0.28.1) wakes up when a peer sends. If Horovod's own thread holds the lock of that
connection at this moment, the network thread does not block on the lock: it polls epoll, which returns immediately,
until the scheduler preempts it. If both share a core, because the process is pinned to one or the others are busy, the
network thread has preempted the very thread that it waits for, and spins for its whole time slice: 2 to 3 ms for each
exchange (measured on Linux 6.18, one core per process: an all-reduce of 140 kB took 4.3 ms, with this module 1.2 ms).

With Linux' policy SCHED_BATCH, which any thread may adopt, a thread that wakes up does not preempt others. The network
thread then runs when the core is free, or in its turn. If there are enough cores, this has no cost.
"""

from __future__ import annotations

import contextlib
import os
from collections.abc import Iterator
from pathlib import Path

_THREADS = Path("/proc/self/task")


@contextlib.contextmanager
def network_threads_yield(num_others: int = 0) -> Iterator[None]:
    """Runs the block; threads started in it, except the first `num_others`, then do not preempt others. Linux only."""
    before = _thread_ids()
    yield
    # Thread ids ascend in the order of creation.
    for thread in sorted(_thread_ids() - before)[num_others:]:
        # The thread may have ended, or a container may forbid the call: then exchanges are only slower.
        with contextlib.suppress(OSError):
            os.sched_setscheduler(thread, os.SCHED_BATCH, os.sched_param(0))


def _thread_ids() -> set[int]:
    return {int(entry.name) for entry in _THREADS.iterdir()} if _THREADS.is_dir() else set()
