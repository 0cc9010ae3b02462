"""The cores of a node, dealt out to its processes, and how many threads go with them. Standard library only."""

from __future__ import annotations

import itertools
import os
from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass
from typing import Self

#: Environment variables that set how many threads a process has.
THREAD_VARIABLES = ("TF_NUM_INTRAOP_THREADS", "TF_NUM_INTEROP_THREADS", "OMP_NUM_THREADS")


@dataclass(frozen=True)
class Threads:
    """The number of threads for TensorFlow: within one operation, and for operations side by side."""

    intra_op: int
    inter_op: int

    @classmethod
    def for_cores(cls, num_cores: int) -> Self:
        """As many as there are cores."""
        # With one inter-op thread, a collective that waits for other ranks keeps the computation waiting too.
        return cls(num_cores, max(2, num_cores))


def deal_cores(cores: Sequence[int], num_processes: int) -> list[tuple[int, ...]]:
    """The cores of each process: consecutive runs, as even as they come; one each in turn if there are too few."""
    if num_processes > len(cores):
        return [(cores[i % len(cores)],) for i in range(num_processes)]
    ends = [i * len(cores) // num_processes for i in range(num_processes + 1)]
    return [tuple(cores[start:end]) for start, end in itertools.pairwise(ends)]


def usable_cores(process: int = 0) -> tuple[int, ...]:
    """The cores that a process may use (0: this one), rising; simply all of them where the system cannot say."""
    if hasattr(os, "sched_getaffinity"):
        return tuple(sorted(os.sched_getaffinity(process)))
    return tuple(range(os.cpu_count() or 1))


def own_cores(
    cores: Sequence[int], cores_of_parent: Collection[int], local_rank: int, local_size: int
) -> tuple[int, ...]:
    """The cores that are this process' among those of its node, of the `cores` that it may use.

    A launcher that binds its processes, as `mpirun` does, leaves each fewer cores than its parent has: those are its
    own. Where none does, all processes of a node may use the same cores, and share them.
    """
    if set(cores) < set(cores_of_parent):
        return tuple(cores)
    return deal_cores(cores, local_size)[local_rank]


def threads_are_given(environment: Mapping[str, str]) -> bool:
    """True if the environment sets how many threads this process has."""
    return any(environment.get(name) for name in THREAD_VARIABLES)
