"""Blocks of rows that processes exchange, without processes: each runs twice, the second time with the messages."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.replica.row_blocks import swapped_between


class Told:
    """A fake process group: records its messages, and returns the others' messages once they are known."""

    def __init__(self, rank: int, num_processes: int) -> None:
        self.rank, self.num_processes = rank, num_processes
        self.sent: Any = None
        self.received: Any = None

    def all_to_all(self, value: tf.Tensor) -> tf.Tensor:
        self.sent = value
        return value if self.received is None else self.received


def expected(source: int, target: int, number: int) -> np.ndarray:
    """Returns rows that contain their source and target."""
    return np.array([(source, target, k) for k in range(number)], "int32").reshape(-1, 3)


def swapped(sizes: np.ndarray, num_processes: int) -> tuple[list[list[Any]], int]:
    """Returns the parts that each replica receives from each other, and the number of rows in a block."""
    num_replicas = len(sizes)
    num_local = num_replicas // num_processes

    def parts(process: int) -> list[list[tf.Tensor]]:
        own = range(process * num_local, (process + 1) * num_local)
        return [[tf.constant(rows(source, target)) for target in range(num_replicas)] for source in own]

    def rows(source: int, target: int) -> np.ndarray:
        return expected(source, target, sizes[source, target])

    groups: list[Any] = [Told(rank, num_processes) for rank in range(num_processes)]
    for group in groups:
        swapped_between(group, parts(group.rank), tf.constant(sizes, tf.int32))
    [length] = {len(group.sent) for group in groups}
    for group in groups:
        group.received = tf.concat([tf.split(other.sent, num_processes)[group.rank] for other in groups], 0)
    found = [swapped_between(group, parts(group.rank), tf.constant(sizes, tf.int32)) for group in groups]
    return [each for own in found for each in own], length // num_processes


@pytest.mark.parametrize(("num_processes", "num_local"), [(2, 1), (2, 2), (3, 2), (2, 3)])
@pytest.mark.parametrize("seed", [0, 1])
def test_each_replica_gets_what_each_has_for_it(num_processes: int, num_local: int, seed: int) -> None:
    num_replicas = num_processes * num_local
    sizes = np.random.default_rng(seed).integers(0, 4, (num_replicas, num_replicas))
    found, length = swapped(sizes, num_processes)
    for target, its in enumerate(found):
        assert len(its) == num_replicas
        for source, rows in enumerate(its):
            np.testing.assert_array_equal(rows, expected(source, target, sizes[source, target]))
    blocks = sizes.reshape(num_processes, num_local, num_processes, num_local).sum((1, 3))
    assert length == (blocks * (1 - np.eye(num_processes, dtype=int))).max()


def test_what_stays_in_a_process_is_not_sent() -> None:
    sizes = np.kron(np.eye(2, dtype=int), np.full((2, 2), 100))
    found, length = swapped(sizes, 2)
    assert [[len(rows) for rows in its] for its in found] == sizes.T.tolist()
    assert length == 1
