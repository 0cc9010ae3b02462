"""The state of random generators, sent between processes; real processes are in `spanning_optimizers`."""

from __future__ import annotations

import random
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.engine.seeds import agree_on_random_state


class Group:
    """A group of two processes with equal or different states; `broadcast` records its values, or replays a record."""

    def __init__(self, alike: bool, from_rank_0: dict[Any, tf.Tensor] | None = None) -> None:
        self.alike, self.from_rank_0 = alike, from_rank_0
        self.sent: dict[Any, tf.Tensor] = {}

    def gather(self, value: tf.Tensor) -> tf.Tensor:
        return tf.concat([value, value + (0 if self.alike else 1)], 0)

    def broadcast(self, value: tf.Tensor) -> tf.Tensor:
        self.sent[value.dtype] = value
        return value if self.from_rank_0 is None else self.from_rank_0[value.dtype]


@pytest.fixture(autouse=True)
def _put_back() -> Iterator[None]:
    ours, numpys = random.getstate(), np.random.get_state()
    yield
    random.setstate(ours)
    np.random.set_state(numpys)


def drawn() -> list[float]:
    return [random.random(), random.gauss(0, 1), float(np.random.random()), float(np.random.normal())]


@pytest.mark.parametrize("num_before", [0, 1])
def test_all_go_on_from_the_state_of_rank_0(num_before: int) -> None:
    def seed(number: int) -> None:
        random.seed(number)
        np.random.seed(number)
        for _ in range(num_before):
            # Normal numbers are drawn in pairs; the generator keeps the second.
            random.gauss(0, 1)
            np.random.normal()

    seed(1)
    sender: Any = Group(alike=False)
    agree_on_random_state(sender)
    expected = drawn()
    seed(2)
    receiver: Any = Group(False, sender.sent)
    agree_on_random_state(receiver)
    assert drawn() == expected


def test_the_same_state_is_left_alone() -> None:
    group: Any = Group(alike=True)
    agree_on_random_state(group)
    assert not group.sent
