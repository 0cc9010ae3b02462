"""Groups of replicas, as tables."""

from __future__ import annotations

from typing import Any

import pytest

from strategies.topology.sharding import ShardingGroups, sharding_groups

#: Size, replicas, replicas of a process, hosts; then the size of groups, processes of a group, groups of a process.
TABLE: list[tuple[Any, int, int, tuple[int, ...], tuple[int, int, int]]] = [
    (None, 4, 4, (), (4, 1, 1)),
    (None, 4, 1, (0, 0, 0, 0), (4, 4, 1)),
    (None, 4, 1, (0, 0, 1, 1), (2, 2, 1)),
    (None, 8, 2, (0, 0, 1, 1), (4, 2, 1)),
    # Hosts with one replica, or with different numbers of replicas, are not used as groups.
    (None, 2, 1, (0, 1), (2, 2, 1)),
    (None, 3, 1, (0, 0, 1), (3, 3, 1)),
    (None, 4, 1, (0, 1, 0, 1), (4, 4, 1)),
    (2, 4, 4, (), (2, 1, 2)),
    (2, 4, 2, (0, 0), (2, 1, 1)),
    (2, 4, 1, (0, 0, 0, 0), (2, 2, 1)),
    (2, 8, 4, (0, 0), (2, 1, 2)),
    (4, 8, 2, (0, 0, 1, 1), (4, 2, 1)),
]


@pytest.mark.parametrize(("size", "num_replicas", "num_local", "nodes", "expected"), TABLE)
def test_groups(size: Any, num_replicas: int, num_local: int, nodes: Any, expected: Any) -> None:
    groups = sharding_groups(size, num_replicas, num_local, nodes)
    assert (groups.size, groups.num_processes, groups.num_local_groups) == expected
    # Each replica of a process, or of a group of processes, owns one part.
    held = [(process, r) for k in range(groups.size) for process, own in [groups.owner(k)] for r in own]
    assert sorted(held) == [(p, r) for p in range(groups.num_processes) for r in range(num_local)]
    assert [r for g in range(groups.num_local_groups) for r in groups.replicas(g)] == list(range(num_local))


def test_positions() -> None:
    assert [ShardingGroups(2, 8, 4).owner(k) for k in range(2)] == [(0, (0, 2)), (0, (1, 3))]
    assert [ShardingGroups(4, 8, 2).owner(k) for k in range(4)] == [(0, (0,)), (0, (1,)), (1, (0,)), (1, (1,))]


@pytest.mark.parametrize("size", [0, 1, 3, 5, True, 2.0, "2"])
def test_sizes_that_do_not_fit(size: Any) -> None:
    with pytest.raises(ValueError, match=r"fit 4 replicas, 1 in each process: \[2, 4\]\. Received: shard_size="):
        sharding_groups(size, 4, 1)
    with pytest.raises(ValueError, match=r"fit 6 replicas, 2 in each process: \[2, 6\]"):
        sharding_groups(3, 6, 2)
