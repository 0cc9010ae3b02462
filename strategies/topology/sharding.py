"""The groups of replicas among which the optimizer is dealt out. Pure: standard library only.

Replicas lie in a row, process by process. A group is some of them next to each other: replicas of one process, or those
of several processes. Inside of a group each holds a part; what one holds, its peers in the other groups hold, too.

Source: MiCS (Zhang et al., arXiv:2205.00119), and the hybrid sharding of torch's FSDP.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ShardingGroups:
    """Groups of one size.

    Attributes:
        size: the replicas of a group, each of which holds a part.
        num_replicas: of the job, a multiple of `size`.
        num_local: of each process; a multiple of `size`, or one of its divisors.
        of_weights: whether weights are in shards, too, beside what the optimizer has.
        of_experts: whether the weights of experts are dealt out among the replicas of a group.
    """

    size: int
    num_replicas: int
    num_local: int
    of_weights: bool = False
    of_experts: bool = False

    @property
    def num_processes(self) -> int:
        """The number of processes to which the replicas of a group belong."""
        return max(self.size // self.num_local, 1)

    @property
    def num_here(self) -> int:
        """The number of groups of which a process has all replicas; 1 if it has some replicas of one group."""
        return max(self.num_local // self.size, 1)

    def owner(self, position: int) -> tuple[int, tuple[int, ...]]:
        """Returns who holds the part at a position: the process, in its group, and its local replicas, one per group.

        Example:

            assert ShardingGroups(2, 4, 4).owner(1) == (0, (1, 3))
            assert ShardingGroups(4, 8, 2).owner(3) == (1, (1,))
        """
        process, first = divmod(position, min(self.size, self.num_local))
        return process, tuple(first + group * self.size for group in range(self.num_here))

    def replicas(self, group: int) -> range:
        """Returns the local replicas of a local group."""
        count = min(self.size, self.num_local)
        return range(group * count, (group + 1) * count)


def sharding_groups(
    shard_size: int | None, num_replicas: int, num_local: int, nodes: Sequence[int] = ()
) -> ShardingGroups:
    """Returns the groups among whose replicas the optimizer is dealt out.

    Args:
        shard_size: replicas of a group. None for those of a host, if there are several hosts with as many replicas
            each; else for all.
        num_replicas: of the job.
        num_local: of each process.
        nodes: the host of each process, by rank; empty if they are not known.

    Raises:
        ValueError: a size that does not divide the replicas, or of groups that have a part of a process.
    """
    if shard_size is None:
        runs = [len(list(own)) for _, own in itertools.groupby(nodes)]
        # Hosts between whose ranks there are others' are no groups: those are next to each other.
        is_alike = len(set(runs)) == 1 and len(runs) == len(set(nodes))
        of_host = runs[0] * num_local if is_alike else num_replicas
        return ShardingGroups(of_host if of_host > 1 else num_replicas, num_replicas, num_local)
    is_size = isinstance(shard_size, int) and not isinstance(shard_size, bool) and shard_size > 1
    if not is_size or num_replicas % shard_size or (num_local % shard_size and shard_size % num_local):
        fitting = [
            size
            for size in range(2, num_replicas + 1)
            if num_replicas % size == 0 and (num_local % size == 0 or size % num_local == 0)
        ]
        raise ValueError(
            "shard_size is the number of replicas among which the optimizer is dealt out: it divides their number, and "
            f"its groups are of whole processes, or inside of one. Sizes that fit {num_replicas} replicas, "
            f"{num_local} in each process: {fitting}. Received: shard_size={shard_size!r}."
        )
    return ShardingGroups(shard_size, num_replicas, num_local)
