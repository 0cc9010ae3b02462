"""Mappings of tensors to shards and back: values, gradients, and the devices that compute both."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from keras_ext.tensor.mappings import Shards
from tests.keras_ext.tensor.harness import mesh_strategy

RNG = np.random.default_rng(0)


def shards_over(count: int) -> Shards:
    with mesh_strategy({"tensor": count}).scope():
        return Shards.present()


def values(*shapes: tuple[int, ...]) -> list[tf.Tensor]:
    return [tf.constant(RNG.normal(size=shape), tf.float32) for shape in shapes]


def gradients(function: Callable[..., Any], inputs: list[tf.Tensor], upstream: list[tf.Tensor]) -> Any:
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = tf.nest.flatten(function(inputs))
    return outputs, tape.gradient(outputs, inputs, upstream)


def assert_on(tensors: list[tf.Tensor], *devices: int) -> None:
    assert [int(tensor.device[-1]) for tensor in tensors] == list(devices)


def assert_equal(found: list[tf.Tensor], wanted: list[Any]) -> None:
    for one, other in zip(found, wanted, strict=True):
        np.testing.assert_array_equal(one, other)


def test_copy_and_reduce_are_each_others_gradient() -> None:
    shards = shards_over(2)
    [x], upstream = values((3, 4)), values((3, 4), (3, 4))
    copies, [gradient] = gradients(lambda inputs: shards.copy(inputs[0]), [x], upstream)
    assert_equal(copies, [x, x])
    np.testing.assert_array_equal(gradient, upstream[0] + upstream[1])
    partial, [above] = values((3, 4), (3, 4)), values((3, 4))
    total, found = gradients(shards.reduce, partial, [above])
    assert_equal(total, [partial[0] + partial[1]])
    assert_equal(found, [above, above])
    assert_on([gradient, *total], 0, 0)


@pytest.mark.parametrize("length", [4, 5, 1], ids="length={}".format)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_split_evenly_and_gather_are_each_others_gradient(length: int, known: bool) -> None:
    shards = shards_over(2)
    x = tf.constant(RNG.normal(size=(2, length, 3)), tf.float32)
    cut = -(-length // 2)
    upstream = [x[:, :cut] * 2, x[:, cut:] * 3]

    def run(x: tf.Tensor) -> Any:
        return gradients(lambda inputs: shards.split_evenly(inputs[0], 1), [x], upstream)

    pieces, [gradient] = run(x) if known else tf.function(run, input_signature=[tf.TensorSpec((2, None, 3))])(x)
    assert_equal(pieces, [x[:, :cut], x[:, cut:]])
    assert_equal([gradient], [np.concatenate(upstream, 1)])
    joined, found = gradients(lambda inputs: shards.gather(inputs, 1), pieces, [x])
    assert_equal(joined, [x])
    assert_equal(found, pieces)


@pytest.mark.parametrize("length", [4, 5], ids="length={}".format)
@pytest.mark.parametrize("known", [True, False], ids=["known", "unknown"])
def test_all_gather_and_reduce_scatter_are_each_others_gradient(length: int, known: bool) -> None:
    shards = shards_over(2)
    [x, y] = values((2, length, 3), (2, length, 3))
    cut = -(-length // 2)
    pieces, parts = [x[:, :cut], x[:, cut:]], [(x + y)[:, :cut], (x + y)[:, cut:]]
    signature = [[tf.TensorSpec((2, None, 3))] * 2]

    def gather(pieces: Any) -> Any:
        return gradients(lambda inputs: shards.all_gather(inputs, 1), list(pieces), [x, y])

    def scatter(partial: Any) -> Any:
        return gradients(lambda inputs: shards.reduce_scatter(inputs, 1), list(partial), pieces)

    if not known:
        gather, scatter = (tf.function(function, input_signature=signature) for function in (gather, scatter))
    whole, found = gather(pieces)
    assert_equal(whole, [x, x])
    assert_equal(found, parts)
    scattered, back = scatter([x, y])
    assert_equal(scattered, parts)
    assert_equal(back, [x, x])
    if known:
        assert_on(whole, 0, 1)
        assert_on(scattered, 0, 1)
        assert_on(back, 0, 1)


def test_one_shard_takes_no_copies() -> None:
    shards = Shards.present()
    [x] = values((2, 3))
    for found in (
        shards.reduce([x]),
        shards.gather([x], 0),
        *shards.split_evenly(x, 1),
        *shards.reduce_scatter([x], 1),
    ):
        assert found is x
