"""Agreement between ranks that are threads of one process; `processes/suite_refusals` tests it between processes."""

from __future__ import annotations

import threading
from collections.abc import Callable, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any

import pytest
import tensorflow as tf

from strategies.collectives.agreement import Agreement

NUM_RANKS = 4


class Job:
    """A process group of threads, which counts its collectives."""

    num_processes = NUM_RANKS

    def __init__(self, rank: int, barrier: threading.Barrier, sent: dict[int, tf.Tensor]) -> None:
        self.rank, self._barrier, self._sent = rank, barrier, sent
        self.count = 0

    def gather(self, value: tf.Tensor, dim: int = 0, *, equal_sizes: bool = False) -> tf.Tensor:
        self.count += 1
        self._sent[self.rank] = value
        self._barrier.wait(10.0)
        gathered = tf.concat([self._sent[rank] for rank in range(NUM_RANKS)], dim)
        self._barrier.wait(10.0)
        return gathered


def on_all_ranks(call: Callable[[Agreement], Any], num_together: int = 1) -> tuple[list[Any], list[int]]:
    """Returns each rank's result or error, and its number of collectives."""
    barrier, sent = threading.Barrier(NUM_RANKS), dict[int, tf.Tensor]()
    jobs: list[Any] = [Job(rank, barrier, sent) for rank in range(NUM_RANKS)]

    def caught(job: Any) -> Any:
        try:
            return call(Agreement(job, num_together))
        except ValueError as error:
            return str(error)

    with ThreadPoolExecutor(NUM_RANKS) as pool:
        return list(pool.map(caught, jobs)), [job.count for job in jobs]


def remedy(lines: Sequence[str]) -> str:
    return f"Write the same {sorted({*lines})}."


def test_equal_lines_cost_one_exchange() -> None:
    assert on_all_ranks(lambda job: job.compare("lines", ["a", "b"], remedy)) == ([None] * NUM_RANKS, [1] * NUM_RANKS)


def test_lines_that_differ_are_the_same_error_on_every_rank() -> None:
    errors, _ = on_all_ranks(lambda job: job.compare("lines", ["a", "\n" if job.job.rank == 2 else "b"], remedy))
    assert (
        errors
        == ["Write the same ['\\n', 'b']. Received, where they differ: ranks 0, 1, 3: b | rank 2: \n."] * NUM_RANKS
    )


def test_numbers_are_those_of_the_positions() -> None:
    found, _ = on_all_ranks(lambda job: job.exchange("rows", job.position, 7), num_together=2)
    assert found == [[[0, 7], [1, 7]]] * NUM_RANKS


@pytest.mark.parametrize("other", [0, 3])
def test_processes_of_one_replica_need_equal_numbers(other: int) -> None:
    errors, _ = on_all_ranks(lambda job: job.exchange("rows", int(job.job.rank == other)), num_together=2)
    [error] = {*errors}
    assert f"rank {other}: rows: 1" in error
