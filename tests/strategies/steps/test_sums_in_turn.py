"""Sums over CPU devices: in one order, with ops on their devices, and those of TensorFlow where they have to be."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies._tf_internals import Mirrored, PerReplica
from strategies.steps.sums_in_turn import SumsInTurn

DEVICES = [f"/job:localhost/replica:0/task:0/device:CPU:{i}" for i in range(3)]


def per_replica(values: Any) -> PerReplica:
    components = []
    for device, value in zip(DEVICES, values, strict=True):
        with tf.device(device):
            components.append(tf.identity(value))
    return PerReplica(tuple(components))


def reduced(values: list[PerReplica], reduce_op: Any = tf.distribute.ReduceOp.SUM) -> list[Mirrored]:
    return list(SumsInTurn().batch_reduce(reduce_op, [(value, value) for value in values]))


def in_function(compute: Callable[[], Any]) -> tuple[Any, list[tf.Operation]]:
    function = tf.function(compute, autograph=False, jit_compile=False)
    return function(), function.get_concrete_function().graph.get_operations()


#: Sums of three that depend on the order: two at a time the large ones cancel.
TERMS = np.asarray([[1e8, 1.0], [1.0, 1e8], [-1e8, -1e8]], np.float32)


def test_adds_in_the_order_of_the_devices() -> None:
    def compute() -> Any:
        first, second = reduced([per_replica(TERMS), per_replica(TERMS[::-1])])
        return first.values, second.values

    found, ops = in_function(compute)
    for values, terms in zip(found, (TERMS, TERMS[::-1]), strict=True):
        expected = functools.reduce(np.add, terms)
        for value in values:
            np.testing.assert_array_equal(value, expected)
    sums = [op for op in ops if op.type == "AddV2"]
    assert [op.device for op in sums] == DEVICES[1:] * 2
    last = [op for op in ops if op.type == "Identity" and op.inputs[0].op in sums]
    assert [op.device for op in last] == DEVICES * 2


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float64, tf.complex64])
def test_keeps_dtypes_and_unknown_shapes(dtype: tf.DType) -> None:
    @tf.function(input_signature=[tf.TensorSpec([None, 2], dtype)], jit_compile=False)
    def compute(x: tf.Tensor) -> Any:
        [total] = reduced([per_replica([x, x, x])])
        assert total.values[0].shape.as_list() == [None, 2]
        return total.values

    for value in compute(tf.cast([[1.0, 2.0]], dtype)):
        assert value.dtype == dtype
        np.testing.assert_array_equal(tf.cast(value, tf.float32), [[3.0, 6.0]])


def test_follows_tapes_and_control_dependencies() -> None:
    x = tf.Variable([1.0, 2.0])

    def compute() -> Any:
        with tf.GradientTape() as tape:
            [total] = reduced([per_replica([x * 1.0, x * 2.0, x * 3.0])])
            loss = tf.reduce_sum(total.values[2])
        with tf.control_dependencies([x.assign_add([1.0, 1.0])]):
            [after] = reduced([per_replica([x * 1.0] * 3)])
        return tape.gradient(loss, x), after.values[0]

    (gradient, after), ops = in_function(compute)
    np.testing.assert_array_equal(gradient, [6.0, 6.0])
    np.testing.assert_array_equal(after, [6.0, 9.0])
    assert not any(op.name.startswith("sums/") for op in ops)


def test_other_reductions_are_those_of_tensorflow() -> None:
    def compute() -> Any:
        [mean] = reduced([per_replica(TERMS)], tf.distribute.ReduceOp.MEAN)
        rows = [tf.IndexedSlices(tf.identity(tf.ones((1, 2))), tf.constant([i]), tf.constant([3, 2])) for i in range(3)]
        [slices] = reduced([PerReplica(tuple(rows))])
        return mean.values, tf.convert_to_tensor(slices.values[0])

    (means, slices), _ = in_function(compute)
    np.testing.assert_array_equal(means[1], functools.reduce(np.add, TERMS) / 3)
    np.testing.assert_array_equal(slices, np.ones((3, 2)))
    # Eagerly.
    [total] = reduced([per_replica(TERMS)])
    for value, device in zip(total.values, DEVICES, strict=True):
        np.testing.assert_array_equal(value, functools.reduce(np.add, TERMS))
        assert value.device == device
