"""The groups of replicas over which the optimizer is sharded. Pure: standard library only.

Replicas are numbered process by process. A group is a range of adjacent replicas: replicas of one process, or all
replicas of several processes. Each replica of a group holds one shard; its peers in the other groups hold the same one.

Source: MiCS (Zhang et al., arXiv:2205.00119), and the hybrid sharding of torch's FSDP.
"""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from dataclasses import dataclass


@dataclass(frozen=True)
class ShardingGroups:
    """Sharding groups of one size.

    Attributes:
        size: the number of replicas of a group, each of which holds one shard.
        num_replicas: the number of replicas of the job, a multiple of `size`.
        num_local: the number of replicas of each process; a multiple of `size`, or one of its divisors.
        shards_weights: whether weights are sharded, too, besides the optimizer state.
        shards_experts: whether the experts' weights are distributed over the replicas of a group.
    """

    size: int
    num_replicas: int
    num_local: int
    shards_weights: bool = False
    shards_experts: bool = False

    @property
    def num_processes(self) -> int:
        """The number of processes to which the replicas of a group belong."""
        return max(self.size // self.num_local, 1)

    @property
    def num_local_groups(self) -> int:
        """The number of groups with replicas in one process; 1 if a group spans processes."""
        return max(self.num_local // self.size, 1)

    def owner(self, position: int) -> tuple[int, tuple[int, ...]]:
        """Returns the owner of the shard at a position: (process within the group, its local replicas, one per group).

        Example:

            assert ShardingGroups(2, 4, 4).owner(1) == (0, (1, 3))
            assert ShardingGroups(4, 8, 2).owner(3) == (1, (1,))
        """
        process, first = divmod(position, min(self.size, self.num_local))
        return process, tuple(first + group * self.size for group in range(self.num_local_groups))

    def replicas(self, group: int) -> range:
        """Returns the local replicas of a local group."""
        count = min(self.size, self.num_local)
        return range(group * count, (group + 1) * count)


def sharding_groups(
    shard_size: int | None, num_replicas: int, num_local: int, nodes: Sequence[int] = ()
) -> ShardingGroups:
    """Returns the groups of replicas over which the optimizer is sharded.

    Args:
        shard_size: the number of replicas of a group. None: the replicas of a host, if all hosts have equally many,
            more than one, and consecutive ranks; else all replicas.
        num_replicas: the number of replicas of the job.
        num_local: the number of replicas of each process.
        nodes: the host of each process, by rank; empty if unknown.

    Raises:
        ValueError: a size that does not divide the number of replicas, or that fits neither whole processes nor the
            inside of one.
    """
    if shard_size is None:
        runs = [len(list(own)) for _, own in itertools.groupby(nodes)]
        # A host whose ranks are not consecutive is no group: the replicas of a group are adjacent.
        is_alike = len(set(runs)) == 1 and len(runs) == len(set(nodes))
        per_host = runs[0] * num_local if is_alike else num_replicas
        return ShardingGroups(per_host if per_host > 1 else num_replicas, num_replicas, num_local)
    is_size = isinstance(shard_size, int) and not isinstance(shard_size, bool) and shard_size > 1
    if not is_size or num_replicas % shard_size or (num_local % shard_size and shard_size % num_local):
        fitting = [
            size
            for size in range(2, num_replicas + 1)
            if num_replicas % size == 0 and (num_local % size == 0 or size % num_local == 0)
        ]
        raise ValueError(
            "shard_size is the number of replicas over which the optimizer is sharded: it divides their number, and "
            f"its groups consist of whole processes, or lie inside one. Sizes that fit {num_replicas} replicas, "
            f"{num_local} in each process: {fitting}. Received: shard_size={shard_size!r}."
        )
    return ShardingGroups(shard_size, num_replicas, num_local)
