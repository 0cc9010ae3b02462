"""The states of a unit on a replica, and what replicas copy from each other."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.sharding.units import ReplicaUnit, ReplicaUnits, State, Unit

DEVICES = ("CPU:0", "CPU:1")
WEIGHTS = ["kernel", "bias"]


class AllGather:
    """Returns another number for each weight and call, and counts the calls."""

    def __init__(self) -> None:
        self.replicas: list[int] = []

    def __call__(self, weights: Sequence[Any], replica: int) -> list[Any]:
        self.replicas.append(replica)
        return [tf.constant(10.0 * len(self.replicas) + i) for i in range(len(weights))]


def on_replicas() -> list[ReplicaUnit]:
    unit = Unit(DEVICES, is_small=False)
    return [ReplicaUnits(replica).get(unit) for replica in range(2)]


def test_states_of_a_forward_and_a_backward_pass() -> None:
    gather, [own, _] = AllGather(), on_replicas()
    for call in (1, 2):
        states = [own.state]
        own.unshard(gather, WEIGHTS)
        states.append(own.state)
        np.testing.assert_array_equal(own.wait_for_unshard(), [10 * call, 10 * call + 1])
        states.append(own.state)
        own.reshard()
        assert states == [State.SHARDED, State.UNSHARDING, State.UNSHARDED]


def test_a_wait_without_an_all_gather_and_two_all_gathers_without_a_wait_are_refused() -> None:
    gather, [own, _] = AllGather(), on_replicas()
    with pytest.raises(RuntimeError, match=r"No all-gather .* sharded\."):
        own.wait_for_unshard()
    own.unshard(gather, WEIGHTS)
    with pytest.raises(RuntimeError, match=r"unsharded twice.*unsharding\."):
        own.unshard(gather, WEIGHTS)


def test_the_second_replica_copies_each_all_gather_of_the_first() -> None:
    gather, [first, second] = AllGather(), on_replicas()
    first.unshard(gather, WEIGHTS, peers=[second])
    first.wait_for_unshard()
    first.unshard(gather, WEIGHTS[:1], peers=[second])
    second.unshard(gather, WEIGHTS, peers=[first])
    np.testing.assert_array_equal(second.wait_for_unshard(), [10, 11])
    second.unshard(gather, WEIGHTS[:1], peers=[first])
    np.testing.assert_array_equal(second.wait_for_unshard(), [20])
    assert gather.replicas == [0, 0]
    assert second.on_peer([first]) is None


def test_passes_that_reshard_have_a_unit_of_their_own() -> None:
    unit, own = Unit(DEVICES, is_small=False), ReplicaUnits(0)
    assert own.get(unit) is own.get(unit) is not own.get(unit, for_passes=True)
