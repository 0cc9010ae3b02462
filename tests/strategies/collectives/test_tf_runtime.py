"""The contract over TensorFlow's collective runtime, between eight devices of this process."""

import functools
import math
import subprocess
import textwrap

import pytest

from strategies.collectives import Collectives
from strategies.collectives.tf_runtime import TensorFlowCollectives
from strategies.topology.mesh import DeviceMesh
from tests.processes import python
from tests.strategies.collectives.contract import CollectivesContract
from tests.strategies.collectives.test_loopback import device_names


@functools.cache
def make_collectives(axes: tuple[tuple[str, int], ...], reverse: bool) -> TensorFlowCollectives:
    """Returns one instance per mesh for all tests, so that its eager functions are traced once."""
    devices = device_names(math.prod(size for _, size in axes), reverse)
    return TensorFlowCollectives(DeviceMesh.from_devices(devices, dict(axes)), timeout_seconds=60)


class TestTensorFlowRuntime(CollectivesContract):
    def make(self, axes: dict[str, int], *, reverse: bool = False) -> Collectives:
        return make_collectives(tuple(axes.items()), reverse)


def test_refused_construction() -> None:
    mesh = DeviceMesh.from_devices(["CPU:0", "CPU:77"])
    with pytest.raises(ValueError, match="no device 'CPU:77'"):
        TensorFlowCollectives(mesh)
    mesh = DeviceMesh.from_devices(["CPU:0", "CPU:1"])
    with pytest.raises(ValueError, match="timeout_seconds=-1"):
        TensorFlowCollectives(mesh, timeout_seconds=-1)
    with pytest.raises(ValueError, match="Process 1 owns no coordinate"):
        TensorFlowCollectives(mesh, rank=1)
    with pytest.raises(ValueError, match=r"Make channels inside a tf\.function"):
        TensorFlowCollectives(mesh).channel("data", 0, 1)


@pytest.mark.parametrize("devices", [("CPU:0", "CPU:1"), ("CPU:1", "CPU:2")], ids=["CPUs", "would-be GPUs"])
def test_a_receive_that_nobody_sends_to_fails_in_time(devices: tuple[str, str]) -> None:
    # A process of its own: after one failed collective TensorFlow fails all later ones.
    program = """
        import time

        import tensorflow as tf

        from strategies.collectives.tf_runtime import TensorFlowCollectives
        from strategies.topology.mesh import DeviceMesh
        from tests import conftest
        from tests.would_be_gpus import would_be_gpus

        would_be = would_be_gpus()
        would_be.__enter__()
        mesh = DeviceMesh.from_devices(DEVICES, {"pipe": 2})
        collectives = TensorFlowCollectives(mesh, timeout_seconds=1)

        @tf.function
        def step():
            return collectives.channel("pipe", 0, 1).recv([[2]], tf.float32)

        start = time.monotonic()
        try:
            step()
        except tf.errors.DeadlineExceededError as error:
            print("failed after", round(time.monotonic() - start), "s")
            print(error)
    """
    command = python("-c", textwrap.dedent(program).replace("DEVICES", str(list(devices))))
    done = subprocess.run(command, capture_output=True, text=True, timeout=100, check=False)
    assert "failed after" in done.stdout, done.stdout + done.stderr
    assert int(done.stdout.split()[2]) <= 10
    assert "Rank 0 of 1 has waited 1 s for the others in a collective" in done.stdout
