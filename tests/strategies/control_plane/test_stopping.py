"""The step after which all ranks stop, tested with threads as ranks, some of them a step ahead."""

from __future__ import annotations

import concurrent.futures
import random
import threading

import pytest

from strategies.control_plane import DistributedError, KeyValueStore, Member, findings
from strategies.control_plane import member as members
from tests.strategies.control_plane.test_joining import TIMEOUT_SECONDS, closed, stores

__all__ = ["closed"]


class Steps:
    """Steps that all ranks take together: each ends when all have begun it."""

    def __init__(self, num_ranks: int) -> None:
        self._barriers = [threading.Barrier(num_ranks) for _ in range(200)]

    def take(self, number: int) -> None:
        self._barriers[number].wait(TIMEOUT_SECONDS)


def trained(store: KeyValueStore, steps: Steps, wanted: dict[int, int], trainings: int) -> list[tuple[int, str]]:
    """Returns for each training the number of steps that a rank has taken, and the reason for its end.

    Args:
        wanted: by rank, the step after which it wants to stop.
    """
    member, taken = Member(store.rank, store.world_size, store, TIMEOUT_SECONDS), []
    assert member.stops is not None
    for training in range(trainings):
        member.stops.begin()
        for number in range(1, 40):
            steps.take(40 * training + number)
            if random.random() < 0.2:
                threading.Event().wait(0.002)
            wants = number >= wanted.get(store.rank, 1000)
            if reason := member.stops.after_step(f"rank {store.rank} wants to" if wants else ""):
                taken.append((number, reason))
                break
    return taken


@pytest.mark.parametrize("wanted", [{0: 7}, {2: 7}, {0: 7, 1: 7, 2: 7}, {0: 9, 1: 7}])
def test_all_stop_after_the_same_step(wanted: dict[int, int]) -> None:
    all_stores, steps = stores(3), Steps(3)
    with concurrent.futures.ThreadPoolExecutor(3) as pool:
        results = list(pool.map(lambda store: trained(store, steps, wanted, 4), all_stores))
    assert results[0] == results[1] == results[2]
    for number, reason in results[0]:
        assert min(wanted.values()) <= number <= min(wanted.values()) + 1
        assert reason in {f"rank {rank} wants to" for rank in wanted}


def test_one_that_leaves_is_named(monkeypatch: pytest.MonkeyPatch) -> None:
    delays = ((members, "SECONDS_UNTIL_POSTED"), (members, "_SECONDS_BETWEEN_LOOKS"), (findings, "_SECONDS_TO_STAND"))
    for module, delay in delays:
        monkeypatch.setattr(module, delay, 0.02)
    first, second = stores(2)
    member = Member(0, 2, first, TIMEOUT_SECONDS)
    assert member.stops is not None
    member.stops.begin()
    second.close("ended after fit, after step 3")
    with pytest.raises(
        DistributedError, match="Rank 1 ended after fit, after step 3; rank 0 waits for the exchange of"
    ):
        member.stops.after_step("a reason")
