"""Layers whose shards belong to several processes: run by `test_spanning_tensor` on all ranks at once.

Models are compared with plain Keras on one device, as in `spanning.py`; mappings with those of one process.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from keras_ext.tensor.channelwise import ShardwiseDropout
from keras_ext.tensor.mappings import Shards
from keras_ext.tensor.split_tensor import SplitTensor
from strategies import layer_api
from tests.strategies.parity.harness import TOLERANCE, Case, compare, execute
from tests.strategies.processes.matrix import chosen_meshes
from tests.strategies.processes.mesh_strategies import on
from tests.strategies.processes.spanning import NUM_LOCAL, NUM_RANKS, assert_same_on_all_ranks
from tests.strategies.processes.tensor_models import MODELS

AXES = chosen_meshes(NUM_RANKS, NUM_LOCAL, os.environ.get("SUITE_MESHES"))[0]
COUNT = AXES["tensor"]


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    on(AXES)


@pytest.mark.parametrize("name", MODELS)
def test_models_train_as_on_one_device(name: str) -> None:
    make, run = MODELS[name]
    job = on(AXES).extended.engine.process_group
    found = execute(Case("", lambda: make(True), run), on(AXES))
    assert_same_on_all_ranks([np.asarray(found.logs[key], "float64") for key in sorted(found.logs)], job)
    assert_same_on_all_ranks([*found.weights, *found.slots], job)
    # If rank 0 raised an error alone, the other ranks would wait for its message.
    largest, error = 0.0, None
    if job.rank == 0:
        try:
            largest = compare(execute(Case("", lambda: make(False), run), None), found).largest
        except Exception as raised:
            largest, error = float("inf"), raised
    largest = float(job.broadcast(tf.constant(largest, tf.float64)))
    if error is not None:
        raise error
    assert largest <= TOLERANCE


@pytest.mark.parametrize("policy", ["mixed_float16", "mixed_bfloat16"])
def test_mixed_precision(policy: str) -> None:
    make, run = MODELS["language model"]
    found = execute(Case("", lambda: make(True), run, policy), on(AXES))
    values = [*found.weights, *found.slots, *(found.logs[name] for name in sorted(found.logs))]
    assert all(np.isfinite(np.asarray(value, "float32")).all() for value in values)
    assert_same_on_all_ranks([np.asarray(value, "float64") for value in values], on(AXES).extended.engine.process_group)


# ---- mappings


def here() -> Shards:
    with on(AXES).scope():
        return Shards.present()


def in_one_process() -> Shards:
    """Returns the same number of shards on this process' devices."""
    return Shards(layer_api.replica_parts(), (0,) * COUNT, tuple(range(COUNT)))


def numbers(*shape: int, seed: int = 0) -> Any:
    return tf.constant(np.random.default_rng(seed).integers(-8, 8, shape), tf.float32)


def cut(value: Any, dim: int = 1) -> list[Any]:
    return list(in_one_process().split_evenly(value, dim))


#: For each mapping: the mapping, its inputs, whether there is one input for each shard, and the same for its outputs.
#: `x` is a whole tensor.
MAPPINGS: Mapping[str, tuple[Callable[[Shards, Any, Any], Any], Callable[[Any], Any], bool, bool]] = {
    "copy": (lambda s, x, whole: s.copy(x), lambda x: x, False, True),
    "reduce": (lambda s, xs, whole: s.reduce(xs), lambda x: [x * (i + 1) for i in range(COUNT)], True, False),
    "split_evenly": (lambda s, x, whole: s.split_evenly(x, 1), lambda x: x, False, True),
    "gather": (lambda s, xs, whole: s.gather(xs, 1, tf.shape(whole)[1]), cut, True, False),
    "all_gather": (lambda s, xs, whole: s.all_gather(xs, 1, tf.shape(whole)[1]), cut, True, True),
    "reduce_scatter": (
        lambda s, xs, whole: s.reduce_scatter(xs, 1),
        lambda x: [x * (i + 1) for i in range(COUNT)],
        True,
        True,
    ),
}


def applied(mapping: str, shards: Shards, x: Any) -> Any:
    """Returns outputs and gradients of all local shards."""
    function, make, many_in, many_out = MAPPINGS[mapping]
    inputs = make(x)
    inputs = [inputs[i] for i in shards.owned] if many_in else [inputs]
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        outputs = function(shards, inputs if many_in else inputs[0], x)
        outputs = list(outputs) if many_out else [outputs]
    weights = [index + 2.0 for index in shards.owned] if many_out else [3.0]
    upstream = [y * weight + 1 for y, weight in zip(outputs, weights, strict=True)]
    return outputs, tape.gradient(outputs, inputs, upstream)


@pytest.mark.parametrize("length", [None, 2 * COUNT, 2 * COUNT + 1, 1])
def test_mappings_are_those_of_one_process(length: int | None) -> None:
    """An unknown length is tested with one that divides, and one that does not."""
    alone, shards = in_one_process(), here()
    assert shards.between is not None
    assert len(shards.owned) == NUM_LOCAL

    @tf.function(input_signature=[tf.TensorSpec([3, length, 2])], autograph=False)
    def all_here(x: Any) -> Any:
        return {name: applied(name, shards, x) for name in MAPPINGS}

    for size in [2 * COUNT, 2 * COUNT + 1, 2] if length is None else [length]:
        x = numbers(3, size, 2)
        for name, (outputs, gradients) in all_here(x).items():
            wanted, wanted_gradients = applied(name, alone, x)
            many_in, many_out = MAPPINGS[name][2:]
            for found, every, is_many in ((outputs, wanted, many_out), (gradients, wanted_gradients, many_in)):
                own = [every[i] for i in shards.owned] if is_many else every
                for one, other in zip(found, own, strict=True):
                    np.testing.assert_array_equal(one, other, err_msg=f"{name}, length {size}")


@pytest.mark.parametrize("dtype", ["int32", "bool", "bfloat16", "float16", "float64"])
def test_mappings_of_dtypes(dtype: str) -> None:
    shards = here()
    x = tf.cast(numbers(2, 2 * COUNT + 1), dtype)
    size = shards.size_along(x, 1)

    @tf.function(autograph=False)
    def joined() -> Any:
        pieces = shards.split_evenly(x, 1)
        return shards.copy(x), shards.gather(pieces, 1, size), shards.all_gather(pieces, 1, size)

    copies, whole, wholes = joined()
    for found in (*copies, whole, *wholes):
        assert found.dtype == x.dtype
        np.testing.assert_array_equal(found, x)


def test_gradients_of_gradients() -> None:
    shards = here()
    x = numbers(3, COUNT)
    with tf.GradientTape() as outer:
        outer.watch(x)
        with tf.GradientTape() as inner:
            inner.watch(x)
            y = shards.reduce([piece**3 * (i + 1) for i, piece in zip(shards.owned, shards.copy(x), strict=True)])
        first = inner.gradient(y, x)
    factor = COUNT * (COUNT + 1) / 2
    np.testing.assert_allclose(first, 3 * x**2 * factor, rtol=1e-6)
    np.testing.assert_allclose(outer.gradient(first, x), 6 * x * factor, rtol=1e-6)


def test_what_every_shard_has() -> None:
    shards = here()
    values = [[numbers(2, seed=i), numbers(2, seed=-1 - i + 100)] for i in shards.owned]
    found = shards.gather_all(values)
    assert len(found) == COUNT
    for i, own in enumerate(found):
        np.testing.assert_array_equal(own, [numbers(2, seed=i), numbers(2, seed=-1 - i + 100)])


def test_shapes_are_found_out_without_messages() -> None:
    """One process infers shapes alone: a message would need an answer from the others."""
    shards = here()
    if on(AXES).rank == 0:

        class Mapped(keras.Layer):
            def call(self, x: Any) -> Any:
                pieces = shards.split_evenly(x, 1)
                summed = shards.reduce_scatter(shards.copy(x), 1)
                size = shards.size_along(x, 1)
                return shards.gather(pieces, 1, size), shards.reduce(shards.all_gather(summed, 1, size))

        for spec in Mapped()(keras.Input((2 * COUNT + 1, 2))):
            assert tuple(spec.shape) == (None, 2 * COUNT + 1, 2)


# ---- tensors in shards, weights, draws


def test_pieces_have_the_shape_of_the_whole() -> None:
    shards = here()
    x = numbers(2, 2 * COUNT + 1, 3)
    tensor = SplitTensor(shards.split_evenly(x, 1), 1, shards, shards.size_along(x, 1))
    assert tensor.shape == (2, 2 * COUNT + 1, 3)
    np.testing.assert_array_equal(tf.convert_to_tensor(tensor), x)


def test_split_weights_are_read_whole_and_assigned_in_parts() -> None:
    with on(AXES).scope():
        layer = keras_ext.ColumnParallelDense(2 * COUNT, kernel_initializer=drawn)
        DRAWS.clear()
        layer.build((None, 3))
        weight = layer.kernel
        whole = tf.convert_to_tensor(weight)
        assert DRAWS == [(3, 2 * COUNT)]
        np.testing.assert_array_equal(whole, drawn((3, 2 * COUNT)))
        np.testing.assert_array_equal(weight.numpy(), whole)
        weight.assign(whole * 2)
        weight.assign_add(whole)
        weight.assign_sub(whole * 0.5)
        np.testing.assert_allclose(tf.function(lambda: weight + 0.0, autograph=False)(), whole * 2.5, rtol=1e-6)


DRAWS: list[Sequence[int]] = []


def drawn(shape: Sequence[int], dtype: Any = None) -> Any:
    DRAWS.append(tuple(shape))
    return numbers(*shape)


def test_draws_are_of_the_shard_and_alike_for_what_is_whole() -> None:
    keras.utils.set_random_seed(3)
    x = tf.ones([4, 8 * COUNT])
    with on(AXES).scope():
        apart, whole = ShardwiseDropout(0.5, seed=5), keras.layers.Dropout(0.5)
        shards = Shards.present()
        pieces = apart(SplitTensor(shards.scatter(x), -1, shards), training=True)
        found = [tf.convert_to_tensor(pieces).numpy(), whole(x, training=True).numpy()]
        attention = keras_ext.ParallelMultiHeadAttention(COUNT, 2, dropout=0.5, seed=5)
        found.append(attention(x[tf.newaxis], x[tf.newaxis], training=True).numpy())
    assert_same_on_all_ranks(found, on(AXES).extended.engine.process_group)
    masks = np.split(found[0], COUNT, axis=1)
    assert all(not np.array_equal(masks[0], other) for other in masks[1:])
    first = keras.layers.Dropout(0.5, seed=5)(tf.ones([4, 8]), training=True)
    np.testing.assert_array_equal(masks[0], first)
