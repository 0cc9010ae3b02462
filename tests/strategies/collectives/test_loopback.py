"""The contract over devices of this process, as plain ops; the group of one process, without any."""

import math

import pytest
import tensorflow as tf

from strategies.collectives import Collectives, LoopbackCollectives
from strategies.collectives.loopback import LOOPBACK
from strategies.collectives.process_group import ProcessGroup
from strategies.topology.mesh import DeviceMesh
from tests.strategies.collectives.contract import CollectivesContract


def device_names(count: int, reverse: bool = False) -> list[str]:
    names = [f"/device:CPU:{i}" for i in range(count)]
    return names[::-1] if reverse else names


class TestLoopback(CollectivesContract):
    def make(self, axes: dict[str, int], *, reverse: bool = False) -> Collectives:
        devices = device_names(math.prod(axes.values()), reverse)
        return LoopbackCollectives(DeviceMesh.from_devices(devices, axes))


def test_several_processes_are_refused() -> None:
    with pytest.raises(ValueError, match="a mesh over 2 processes"):
        LoopbackCollectives(DeviceMesh.from_processes(2))


def test_additions_are_spread_over_the_devices() -> None:
    collectives = LoopbackCollectives(DeviceMesh.from_devices(device_names(4)))

    @tf.function(autograph=False)
    def step(values: list[tf.Tensor]) -> list[list[tf.Tensor]]:
        return [collectives.all_reduce(values, "data", differentiable=False) for _ in range(4)]

    graph = step.get_concrete_function([tf.TensorSpec([2])] * 4).graph
    assert {op.device for op in graph.get_operations() if op.type in ("AddN", "AddV2")} == set(device_names(4))


def test_a_message_is_received_once_and_after_it_was_sent() -> None:
    collectives = LoopbackCollectives(DeviceMesh.from_devices(device_names(2), {"pipe": 2}))
    channel = collectives.channel("pipe", 0, 1, num_messages=2)
    with pytest.raises(ValueError, match="No message with tag 1 was sent"):
        channel.recv([[2]], tf.float32, 1)
    channel.send([tf.zeros(2)], 1)
    with pytest.raises(ValueError, match="tags 0 to 1, each once"):
        channel.send([tf.zeros(2)], 1)
    with pytest.raises(ValueError, match=r"Expected .*int32.* but .*float32.* was sent"):
        channel.recv([[2]], tf.int32, 1)


def test_a_group_of_one_process_creates_no_op() -> None:
    """Every method and attribute of a process group has its value for one process: none is inherited."""
    own = {name for name in vars(ProcessGroup) if not name.startswith("_")} | {"rank", "num_processes", "bucket_bytes"}
    assert own - set(dir(LOOPBACK)) == set()
    with tf.Graph().as_default() as graph:
        value, other = tf.zeros([2]), tf.zeros([], tf.int32)
        num_ops = len(graph.get_operations())
        for several in (LOOPBACK.sum, LOOPBACK.sum_gradients):
            assert [id(each) for each in several([value], fused=[other])] == [id(value), id(other)]
        assert LOOPBACK.maximum([value])[0] is value
        for one in (LOOPBACK.gather, LOOPBACK.reduce_scatter, LOOPBACK.all_to_all, LOOPBACK.broadcast):
            assert one(value) is value
        LOOPBACK.barrier()
        assert len(graph.get_operations()) == num_ops
    assert (LOOPBACK.rank, LOOPBACK.num_processes, LOOPBACK.joins_devices, LOOPBACK.devices) == (0, 1, False, ())
