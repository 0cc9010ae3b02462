"""The contract between four processes under Horovod: run by `test_horovod` in each of them, never collected."""

import functools

import pytest
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.horovod import HorovodCollectives, start
from strategies.topology.cluster import Cluster
from strategies.topology.mesh import DeviceMesh
from tests.strategies.collectives.contract import CollectivesContract
from tests.strategies.collectives.reference import (
    BETWEEN_PROCESSES,
    CUBE,
    EXCHANGE,
    LOWEST,
    SQUARE,
    SUM,
    UNEQUAL,
    Case,
    ids,
)

LINE = {"data": 4}
STAGES = {"pipe": 2, "data": 2}
RANK = Cluster.from_environment().rank


@functools.cache
def start_horovod() -> None:
    start(*(DeviceMesh.from_processes(4, axes) for axes in (SQUARE, LINE, STAGES)))


@functools.cache
def make_collectives(axes: tuple[tuple[str, int], ...], reverse: bool = False) -> HorovodCollectives:
    start_horovod()
    sizes = dict(axes)
    ranks = (3, 2, 1, 0) if reverse else (0, 1, 2, 3)
    return HorovodCollectives(DeviceMesh(tuple(sizes), tuple(sizes.values()), ranks, ("",) * 4), RANK)


class TestHorovod(CollectivesContract):
    @pytest.mark.parametrize(("mode", "case"), BETWEEN_PROCESSES, ids=ids)
    def test_values_and_gradients(self, mode: str, case: Case) -> None:
        super().test_values_and_gradients(mode, case)

    def make(self, axes: dict[str, int], *, reverse: bool = False) -> Collectives:
        # A cube would take eight processes: here its middle axis has one position.
        sizes = {"data": 2, "pipe": 1, "tensor": 2} if axes == CUBE else axes
        return make_collectives(tuple(sizes.items()), reverse)

    def test_refused_lists(self) -> None:
        collectives = self.make(SQUARE)
        with pytest.raises(ValueError, match=r"coordinate of this process: 1\. Received: 2"):
            collectives.all_reduce([tf.zeros(2)] * 2, "data")
        with pytest.raises(ValueError, match=r"Received: one tensor of shape \(8, 2\)"):
            collectives.all_reduce(tf.zeros((8, 2)), "data")

    def test_ranks_in_any_order(self, mode: str) -> None:
        collectives = self.make(LINE, reverse=True)
        for case in (SUM, LOWEST, UNEQUAL, EXCHANGE):
            self.check(collectives, mode, case, "data")
