"""Layers that are recomputed in the backward pass: the same numbers, and nothing inside them is kept."""

from __future__ import annotations

import contextlib
import functools
import pathlib
from typing import Any
from unittest import mock

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies import layer_api
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.strategies.parity.harness import TOLERANCE, labels, vectors

L: Any = keras.layers


@keras.saving.register_keras_serializable("tests")
class Block(keras.Layer):
    """A layer with random draws, moving statistics and an added loss."""

    def __init__(self, rate: float = 0.0, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.rate = rate
        self.hidden = L.Dense(16, "tanh")
        self.output_dense = L.Dense(6, kernel_regularizer="l2", activity_regularizer="l2")
        self.normalization = L.BatchNormalization(momentum=0.8)
        self.dropout = L.Dropout(rate)

    def build(self, shape: Any) -> None:
        self.hidden.build(shape)
        self.output_dense.build((*shape[:-1], 16))
        self.normalization.build(shape)

    def call(self, x: Any, training: bool | None = None) -> Any:
        y = self.dropout(self.output_dense(self.hidden(x)))
        y = self.normalization(y, training=training)
        self.add_loss(1e-2 * keras.ops.mean(keras.ops.square(y)))
        return x + y

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "rate": self.rate}


def of_blocks(rate: float = 0.0, num_blocks: int = 2) -> Any:
    blocks = [Block(rate, name=f"block_{k}") for k in range(num_blocks)]
    return keras.Sequential([keras.Input((6,)), *blocks, L.Dense(3, "softmax")])


def sentences() -> np.ndarray:
    """Returns word ids, padded with zeros after the last word."""
    words = np.random.default_rng(3).integers(1, 50, (45, 7))
    return words * (np.arange(7) < 3 + np.arange(45)[:, None] % 5)


def of_words() -> Any:
    """Returns blocks with sparse gradients, an output mask, and a softmax whose logits a loss uses."""
    reading = keras.Sequential([L.Embedding(50, 6, mask_zero=True), L.LSTM(6, return_sequences=True)], name="reading")
    rating = keras.Sequential([L.Dense(5, "tanh"), L.Dense(3), L.Softmax()], name="rating")
    words = keras.Input((None,), dtype="int32")
    return keras.Model(words, rating(L.LSTM(5)(reading(words))))


def trained(make: Any, x: Any, y: Any, *, again: Any, strategy: Any = None, policy: str = "float32") -> Any:
    """Returns weights, slots, generator states and losses."""
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy(policy)
    try:
        keras.utils.set_random_seed(7)
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model = make()
            if again:
                assert keras_ext.rematerialize(model, **(again if isinstance(again, dict) else {})) is model
            # A large epsilon: with a small one, rounding of gradients near zero becomes whole steps.
            model.compile(keras.optimizers.Adam(1e-2, epsilon=0.1), "sparse_categorical_crossentropy")
    finally:
        keras.config.set_dtype_policy(before)
    logs = model.fit(x, y, batch_size=14, epochs=2, shuffle=False, verbose=0).history["loss"]
    draws = [seed.state.numpy() for layer in model._flatten_layers() for seed in layer._seed_generators]
    slots = layer_api.values_of(model, layer_api.joined(model.optimizer.variables))
    return model, [np.array(logs), *model.get_weights(), *slots, *draws]


def assert_same(found: Any, wanted: Any, atol: float) -> None:
    for mine, theirs in zip(found[1], wanted[1], strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)


@pytest.mark.parametrize(
    "make", [lambda: of_blocks(0.4), pytest.param(of_words, marks=pytest.mark.parity_all)], ids=["blocks", "words"]
)
def test_the_same_bits_on_one_device(make: Any) -> None:
    x = sentences() if make is of_words else vectors()
    held, again = (trained(make, x, labels(), again=each) for each in (False, True))
    assert_same(again, held, 0)


@pytest.mark.parity_all
def test_equals_one_device_that_holds_all() -> None:
    # Statistics are per replica: compare only with replicas.
    devices = ["CPU:0", "CPU:1"]
    sharded: tuple[tuple[bool, Any], ...] = ((False, None), (True, "optimizer"))
    held, again = (
        trained(of_blocks, vectors(), labels(), again=each, strategy=strategies.MirroredStrategy(devices, shard=shard))
        for each, shard in sharded
    )
    assert_same(again, held, TOLERANCE)
    words = trained(of_words, sentences(), labels(), again=False)
    two = strategies.MirroredStrategy(devices)
    assert_same(trained(of_words, sentences(), labels(), again=True, strategy=two), words, TOLERANCE)


def adapted_model(*, quantize: bool = False) -> Any:
    """Returns frozen blocks that contain trainable adapters, as KerasHub's ``enable_lora`` makes them."""
    blocks = [keras.Sequential([L.Dense(16, "tanh"), L.Dense(6)], name=f"block_{k}") for k in "ab"]
    model = keras.Sequential([keras.Input((6,)), *blocks, L.Dense(3, "softmax")])
    if quantize:
        model.quantize("int8")
    for layer in model._flatten_layers(include_self=False):
        layer.trainable = False
    for block in blocks:
        for k, layer in enumerate(block.layers):
            layer.trainable = True
            layer.enable_lora(2)
            # From Keras' zeros, the first step would reach the second adapter only.
            adapter = layer.lora_kernel_b
            adapter.assign(np.random.default_rng(k).normal(size=adapter.shape))
    return model


@pytest.mark.filterwarnings("ignore::UserWarning")
@pytest.mark.parametrize("quantize", [False, pytest.param(True, marks=pytest.mark.parity_all)])
def test_adapters_in_frozen_blocks(quantize: bool) -> None:
    make = functools.partial(adapted_model, quantize=quantize)
    held, again = (trained(make, vectors(), labels(), again=each) for each in (False, True))
    assert_same(again, held, 0)
    assert np.abs(held[1][0][0] - held[1][0][-1]) > 1e-3
    split = trained(
        lambda: keras_ext.parallelize(make()),
        vectors(),
        labels(),
        again=True,
        strategy=mesh_strategy({"data": 2, "tensor": 2}),
    )
    assert_same(split, held, TOLERANCE)


@pytest.mark.filterwarnings("ignore::UserWarning")
def test_a_quantized_layer_is_recomputed_itself() -> None:
    model = adapted_model(quantize=True)
    layer = model.layers[0].layers[0]
    keras_ext.rematerialize(model, [layer.name])
    model.compile("sgd", "sparse_categorical_crossentropy")
    with mock.patch.object(layer_api, "recomputed", wraps=layer_api.recomputed) as recomputed:
        model.train_on_batch(np.ones((2, 6), "float32"), np.zeros(2))
    assert recomputed.call_count == 1


@pytest.mark.parity_all
def test_adapters_that_are_enabled_later() -> None:
    def make(again: bool) -> Any:
        model = adapted_model()
        if again:
            keras_ext.rematerialize(model, ["block_a", "block_b", model.layers[-1].name])
        model.layers[-1].trainable = True
        model.layers[-1].enable_lora(2)
        return model

    held, again = (trained(functools.partial(make, each), vectors(), labels(), again=False) for each in (False, True))
    assert_same(again, held, 0)


def test_mixed_precision_computes_in_the_same_precision() -> None:
    def make() -> Any:
        blocks = [keras.Sequential([L.Dense(16, "tanh"), L.LayerNormalization(), L.Dense(6)]) for _ in range(2)]
        return keras.Sequential([keras.Input((6,)), *blocks, L.Dense(3, "softmax", dtype="float32")])

    held, again = (trained(make, vectors(), labels(), again=each, policy="mixed_float16") for each in (False, True))
    assert_same(again, held, 0)


def test_split_layers_inside_of_blocks() -> None:
    def make() -> Any:
        blocks = [keras.Sequential([L.Dense(16, "tanh", name=f"up_{k}"), L.Dense(6, name=f"down_{k}")]) for k in "ab"]
        model = keras.Sequential([keras.Input((6,)), *blocks, L.Dense(3, "softmax")])
        has_axes = getattr(tf.distribute.get_strategy(), "mesh", None) is not None
        return keras_ext.parallelize(model) if has_axes else model

    plain = trained(make, vectors(), labels(), again=False)
    # The named layers return pieces of their output, and take pieces.
    for again in (True, {"which": ["up_a", "down_b"]}):
        split = trained(make, vectors(), labels(), again=again, strategy=mesh_strategy({"data": 2, "tensor": 2}))
        assert_same(split, plain, TOLERANCE)


def test_a_block_holds_its_inputs_only() -> None:
    model = keras_ext.rematerialize(of_blocks())
    x, y = tf.constant(vectors()[:8]), tf.constant(labels()[:8])

    @tf.function
    def step() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_mean(keras.losses.sparse_categorical_crossentropy(y, model(x, training=True)))
        return tape.gradient(loss, [variable.value for variable in model.trainable_variables])

    calls = [op for op in step.get_concrete_function().graph.get_operations() if op.type == "StatefulPartitionedCall"]
    forward, backward = calls[:2], calls[2:]
    assert len(backward) == 2
    # The output of a block, the losses that it and its layer add, and two statistics as they were before the block.
    for op in forward:
        assert [tensor.shape.as_list() for tensor in op.outputs] == [[8, 6], [], [], [6], [6]]
    for op in backward:
        kept = [tensor for tensor in op.inputs if tensor.op in forward and tensor.shape.rank == 2]
        assert all(tensor is tensor.op.outputs[0] for tensor in kept)


def test_inputs_wait_on_the_host_and_come_back_one_block_ahead() -> None:
    held, offloaded = (
        trained(
            functools.partial(of_blocks, num_blocks=3),
            vectors(),
            labels(),
            again=each,
            strategy=strategies.MirroredStrategy(["CPU:1", "CPU:2"]),
        )
        for each in (False, {"offload": True})
    )
    assert_same(offloaded, held, TOLERANCE)
    strategy = strategies.MirroredStrategy(["CPU:1"])
    with strategy.scope():
        model = keras_ext.rematerialize(of_blocks(num_blocks=3), offload=True)
        model.compile("sgd", "sparse_categorical_crossentropy")

    @tf.function
    def step(x: Any, y: Any) -> Any:
        return strategy.run(model.train_step, args=((x, y),))

    graph = step.get_concrete_function(tf.constant(vectors()[:8]), tf.constant(labels()[:8])).graph
    waiting = [op for op in graph.get_operations() if op.type == "PlaceholderWithDefault"]
    assert [op.device.rpartition("device:")[2] for op in waiting] == 3 * ["CPU:0"]
    back = [op.outputs[0].consumers() for op in waiting]
    assert [[op.device.rpartition("device:")[2] for op in consumers] for consumers in back] == 3 * [["CPU:1"]]
    # The copy of a block's input starts with the backward pass of the next block.
    backward = [next(op for op in own[0].outputs[0].consumers() if "PartitionedCall" in op.type) for own in back]
    for [copy], behind in zip(back[:-1], backward[1:], strict=True):
        assert set(copy.control_inputs) & {tensor.op for tensor in behind.inputs}
        assert backward[0] not in copy.control_inputs


def test_files_and_layers_that_are_named(tmp_path: pathlib.Path) -> None:
    model = of_blocks()
    model.compile("sgd", "sparse_categorical_crossentropy")
    model.fit(vectors(), labels(), verbose=0)
    # The step is traced again.
    keras_ext.rematerialize(model, ["block_1"])
    assert model.train_function is None
    model.fit(vectors(), labels(), verbose=0)
    model.save(tmp_path / "again.keras")
    loaded = keras.models.load_model(tmp_path / "again.keras")
    assert "call" not in vars(loaded.get_layer("block_1"))
    np.testing.assert_allclose(loaded.predict(vectors(), verbose=0), model.predict(vectors(), verbose=0), atol=1e-6)


def test_blocks_below_a_head() -> None:
    backbone = of_blocks()
    model = keras_ext.rematerialize(keras.Sequential([keras.Input((6,)), backbone, L.Dense(3, "softmax")]))
    names = [layer.name for layer in model._flatten_layers() if "call" in vars(layer)]
    assert sorted(names) == ["block_0", "block_1"]


def test_refusals() -> None:
    flat = keras.Sequential([keras.Input((6,)), L.Dense(3, name="only")])
    with pytest.raises(ValueError, match=r"no blocks\. Put the layers .* or name layers\. Received: .*\['only'\]"):
        keras_ext.rematerialize(flat)
    rnn = keras.Sequential([keras.Input((4, 6), batch_size=3), L.LSTM(3, stateful=True, name="goes_on")], name="part")
    with pytest.raises(ValueError, match=r"stateful=True continues .*Received: 'goes_on' in 'goes_on'"):
        keras_ext.rematerialize(rnn, ["goes_on"])
    with pytest.raises(ValueError, match=r"It has \['only'\]\. Received: \['other'\]"):
        keras_ext.rematerialize(flat, ["only", "other"])
    with pytest.raises(ValueError, match=r"'blocks', or a list of names of layers\. Received: which='only'"):
        keras_ext.rematerialize(flat, "only")
    both = keras.Sequential([keras.Input((6,)), L.BatchNormalization(synchronized=True, name="all")])
    with pytest.raises(ValueError, match=r"set synchronized=False\. Received: 'all' in 'all'"):
        keras_ext.rematerialize(both, ["all"])


class Noise(keras.Layer):
    """Draws from Keras' global generator."""

    def call(self, x: Any) -> Any:
        return x * keras.random.normal(keras.ops.shape(x))


def test_what_cannot_be_computed_again_is_an_error_in_training() -> None:
    model = keras.Sequential([keras.Input((6,)), Noise(name="noise"), L.Dense(3, "softmax")])
    keras_ext.rematerialize(model, ["noise"]).compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match=r"draws random numbers without a seed of its own.*a draw with seed=None"):
        model.fit(vectors(), labels(), verbose=0)
    block = keras_ext.rematerialize(of_blocks(num_blocks=1), ["block_0"])

    @tf.function
    def penalty(x: Any) -> Any:
        with tf.GradientTape() as outer:
            with tf.GradientTape() as inner:
                inner.watch(x)
                y = tf.reduce_sum(block(x, training=True))
            loss = tf.reduce_sum(inner.gradient(y, x) ** 2)
        return outer.gradient(loss, [variable.value for variable in block.trainable_variables])

    with pytest.raises(ValueError, match=r"A gradient of a gradient.*Leave the layer out of rematerialize"):
        penalty(tf.constant(vectors()[:4]))


def test_a_block_that_is_called_twice() -> None:
    def make() -> Any:
        block = Block(name="block")
        inputs = keras.Input((6,))
        added = L.Add()([block(block(inputs)), Block(name="other")(inputs)])
        return keras.Model(inputs, L.Dense(3, "softmax")(added))

    held, again = (trained(make, vectors(), labels(), again=each) for each in (False, True))
    assert_same(again, held, TOLERANCE)
