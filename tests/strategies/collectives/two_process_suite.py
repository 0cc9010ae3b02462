"""The contract between two processes: run by `test_two_processes` in both, never collected.

Each process owns half of the coordinates, as two or four devices. TF_CONFIG says which half.
"""

import functools
import math

import pytest
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.tf_runtime import TensorFlowCollectives
from strategies.topology.cluster import Cluster
from strategies.topology.mesh import DeviceMesh
from tests.strategies.collectives.contract import CollectivesContract
from tests.strategies.collectives.reference import BETWEEN_PROCESSES, Case, ids


@functools.cache
def start_runtime() -> Cluster:
    """Starts TensorFlow's collective runtime, which only tf.distribute's strategy does."""
    tf.distribute.MultiWorkerMirroredStrategy()
    return Cluster.from_environment()


@functools.cache
def make_collectives(axes: tuple[tuple[str, int], ...], reverse: bool) -> TensorFlowCollectives:
    cluster = start_runtime()
    count = math.prod(size for _, size in axes) // cluster.world_size
    devices = [f"CPU:{i}" for i in range(count)]
    mesh = DeviceMesh.from_processes(
        cluster.world_size, dict(axes), local_devices=devices[::-1] if reverse else devices
    )
    return TensorFlowCollectives(mesh, cluster.rank, timeout_seconds=200)


class TestTwoProcesses(CollectivesContract):
    @pytest.mark.parametrize(("mode", "case"), BETWEEN_PROCESSES, ids=ids)
    def test_values_and_gradients(self, mode: str, case: Case) -> None:
        super().test_values_and_gradients(mode, case)

    def make(self, axes: dict[str, int], *, reverse: bool = False) -> Collectives:
        return make_collectives(tuple(axes.items()), reverse)
