"""Assignment of a node's cores, and of threads, to its processes. Standard library only."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

#: Environment variables that set the number of threads of a process.
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Threads:
    """The numbers of TensorFlow's threads: within one operation, and for concurrent operations."""

    intra_op: int
    inter_op: int

    @classmethod
    def for_cores(cls, num_cores: int) -> Self:
        """Returns as many threads as there are cores."""
        # With one inter-op thread, a collective that waits for other ranks would block computation, too.
        return cls(num_cores, max(2, num_cores))


def partition_cores(cores: Sequence[int], num_processes: int) -> list[tuple[int, ...]]:
    """Returns the cores of each process: consecutive, as evenly as possible; shared round-robin if too few."""
    if num_processes > len(cores):
        return [(cores[i % len(cores)],) for i in range(num_processes)]
    ends = [i * len(cores) // num_processes for i in range(num_processes + 1)]
    return [tuple(cores[start:end]) for start, end in itertools.pairwise(ends)]


def usable_cores(process: int = 0) -> tuple[int, ...]:
    """Returns the cores that a process may use (0: this process), ascending; all if the system does not report it."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(process)))
    return tuple(range(os.cpu_count() or 1))


def own_cores(
    cores: Sequence[int], cores_of_parent: Collection[int], local_rank: int, local_size: int
) -> tuple[int, ...]:
    """Returns this process' share of its node's cores, out of the `cores` that it may use.

    A launcher that binds its processes, such as `mpirun`, leaves each of them fewer cores than its parent has: these
    are returned. Otherwise all processes of a node may use the same cores, which are divided among them.
    """
    if set(cores) < set(cores_of_parent):
        return tuple(cores)
    return partition_cores(cores, local_size)[local_rank]


def threads_are_given(environment: Mapping[str, str]) -> bool:
    """Returns True if the environment sets the number of threads of this process."""
    return any(environment.get(name) for name in THREAD_VARIABLES)
