"""Collectives as groups of GPUs run them, between logical CPU devices that pass for GPUs.

TensorFlow uses its ring for them, whatever the hint, and runs them one after the other on each device. Only the tests
of the contract for which that matters run here: the whole contract takes minutes.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Iterator
from typing import Literal

import numpy as np
import pytest
import tensorflow as tf

from strategies.collectives import Collectives
from strategies.collectives.tf_runtime import TensorFlowCollectives
from strategies.topology.mesh import DeviceMesh
from tests.strategies.collectives.contract import CollectivesContract
from tests.strategies.collectives.reference import draw, reference
from tests.strategies.collectives.test_loopback import device_names
from tests.would_be_gpus import would_be_gpus


@pytest.fixture(autouse=True)
def gpus() -> Iterator[None]:
    with would_be_gpus():
        yield


@functools.cache
def make_collectives(axes: tuple[tuple[str, int], ...], reverse: bool = False) -> TensorFlowCollectives:
    devices = device_names(math.prod(size for _, size in axes), reverse)
    return TensorFlowCollectives(DeviceMesh.from_devices(devices, dict(axes)), timeout_seconds=60)


class _Contract(CollectivesContract):
    def make(self, axes: dict[str, int], *, reverse: bool = False) -> Collectives:
        return make_collectives(tuple(axes.items()), reverse)


_contract = _Contract()


def test_sums_of_all_dtypes() -> None:
    _contract.test_other_dtypes("int32")
    _contract.test_float_dtypes("bfloat16")


def test_any_order_of_devices() -> None:
    _contract.test_longer_axis_and_any_order_of_devices()


def test_loops() -> None:
    _contract.test_many_ops_in_one_function_and_in_a_loop()


def test_several_communicators() -> None:
    _contract.test_two_instances_at_once("graph")


def test_rings_of_messages_of_which_each_waits_for_its_receive() -> None:
    for size in (3, 4):
        collectives = make_collectives((("data", size),))
        for step in (1, -1):
            pairs = [(i, (i + step) % size) for i in range(size)]
            values = draw([(2,)] * size)
            turned = tf.function(functools.partial(collectives.permute, axis="data", pairs=pairs))(values)
            for received, expected in zip(
                turned, reference(collectives.mesh, "permute", values, "data", pairs=pairs), strict=True
            ):
                np.testing.assert_array_equal(received, expected)


def test_channels_whose_messages_both_sides_trace_in_one_order() -> None:
    collectives = make_collectives((("pipe", 2),))
    value = tf.constant([1.0, 2.0])

    @tf.function(autograph=False)
    def step() -> list[tf.Tensor]:
        there, back = collectives.channel("pipe", 0, 1, 2), collectives.channel("pipe", 1, 0, 2)
        returned = []
        for tag in range(2):
            there.send([value * (tag + 1.0)], tag)
            [arrived] = there.recv([[2]], tf.float32, tag)
            back.send([arrived + 1.0], tag)
            returned += back.recv([[2]], tf.float32, tag)
        return returned

    np.testing.assert_array_equal(step(), [[2.0, 3.0], [3.0, 5.0]])


def test_hints() -> None:
    mesh = DeviceMesh.from_devices(device_names(3)[1:])
    hints: dict[Literal["auto", "NCCL", "RING"], str] = {"auto": "nccl", "NCCL": "nccl", "RING": "ring"}
    for given, hint in hints.items():
        collectives = TensorFlowCollectives(mesh, implementation=given)
        function = tf.function(lambda values: collectives.all_reduce(values, "data"))  # noqa: B023
        graph = function.get_concrete_function([tf.TensorSpec([2**23]), tf.TensorSpec([2**23])]).graph
        ops = [op for op in graph.get_operations() if op.type == "CollectiveReduceV2"]
        # One for each device: the tensor is not cut into slices.
        assert [op.get_attr("communication_hint") for op in ops] == [hint.encode()] * 2
