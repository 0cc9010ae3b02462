"""`parallelize` of layers of other libraries: attention by heads, and feed-forward parts by hidden units."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_ext
from keras_ext.tensor.activations import is_elementwise
from keras_ext.tensor.head_parallel import HeadParallel
from strategies import layer_api
from tests.keras_ext.tensor import library_layers as library
from tests.keras_ext.tensor.harness import assert_parity, mesh_strategy
from tests.strategies.parity.harness import NUM_ROWS, labels

L = keras.layers
ATTENTIONS: dict[str, Any] = {
    "attention": library.Attention,
    "with dropout": functools.partial(library.Attention, dropout=0.25),
    "slopes": library.Slopes,
    "over heads": library.OverHeads,
    "penalized": library.Penalized,
    "counting": library.Counting,
    "in training": library.InTraining,
    "borrowing": library.Borrowing,
    "one key head": functools.partial(library.Attention, num_key_value_heads=1),
}
BY_HEADS = ("attention", "with dropout")


def made(name: str) -> Any:
    """Returns a layer by the name of an attention, or of what is computed between the layers of a feed-forward part."""
    if name in ATTENTIONS:
        return ATTENTIONS[name](name="layer")
    return library.FeedForward(library.BETWEEN[name], name="layer")


def plan_of(layer: Any, **arguments: Any) -> Any:
    x = keras.Input((library.LENGTH, library.UNITS))
    with mesh_strategy({"tensor": 2}).scope():
        return keras_ext.default_plan(keras.Model(x, layer(x)), **arguments)


@pytest.fixture(autouse=True)
def _seeded() -> None:
    keras.utils.set_random_seed(1)


@pytest.mark.parametrize("name", ATTENTIONS)
def test_attention_is_split_by_heads_if_its_own_call_computes_them_apart(name: str) -> None:
    plan = plan_of(made(name))
    kinds = {path.rpartition("/")[2]: (choice.kind, choice.pieces) for path, choice in plan.items()}
    assert kinds["layer"] == ("heads" if name in BY_HEADS else None, False)
    assert kinds["_out"][0] == ("row" if name in BY_HEADS else "column")
    assert kinds["_query"] == ("column", name in BY_HEADS)


@pytest.mark.parametrize("name", library.BETWEEN)
def test_a_feed_forward_part_is_split_if_nothing_but_elementwise_ops_is_between(name: str) -> None:
    plan = plan_of(made(name))
    kinds = {path.rpartition("/")[2]: (choice.kind, choice.pieces) for path, choice in plan.items()}
    is_split = name in library.BY_PIECES
    assert (kinds["up"], kinds["down"][0]) == (("column", is_split), "row" if is_split else "column")


# A block has attention and a gated part. What is computed as a whole is in training, and with a weight of its own.
LIKE_OTHERS = (
    *("attention", "gated", "penalized", "used twice"),
    *("slopes", "over heads", "counting", "borrowing", "one key head"),
    *("cast", "softmax", "listed", "clipped", "number", "shifted"),
)


@pytest.mark.parametrize(
    "name",
    [
        pytest.param(name, marks=[pytest.mark.parity_all] if name in LIKE_OTHERS else [])
        for name in (*ATTENTIONS, *library.BETWEEN)
    ],
)
def test_parity(name: str) -> None:
    make = functools.partial(library.compiled, functools.partial(made, name))
    assert_parity(make, library.sequences(NUM_ROWS), labels(), {"tensor": 2}, predict=True)


def test_parity_of_a_block_with_both_on_replicas() -> None:
    def block() -> Any:
        return library.FeedForward(library.BETWEEN["gated"], made("attention"), name="layer")

    make = functools.partial(library.compiled, block)
    assert_parity(make, library.sequences(NUM_ROWS), labels(), {"data": 2, "tensor": 2}, predict=True)


def test_lora_and_int8() -> None:
    x = library.sequences(NUM_ROWS)

    def adapted(split: bool, quantize: bool) -> Any:
        model = library.compiled(functools.partial(made, "attention"), False)
        layer = model.get_layer("layer")
        for each in (layer._query, layer._key, layer._value, layer._out) if quantize else ():
            each.quantize("int8")
        layer._key.enable_lora(2)
        layer._out.enable_lora(2)
        model = keras_ext.parallelize(model) if split else model
        model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "sparse_categorical_crossentropy")
        return model

    for quantize in (False, True):
        assert_parity(functools.partial(adapted, quantize=quantize), x, labels(), {"tensor": 2}, predict=True)


def test_arguments_that_were_not_tried_are_computed_as_a_whole() -> None:
    layer, x = made("attention"), keras.Input((library.LENGTH, library.UNITS))
    model = keras.Model(x, layer(x))
    with mesh_strategy({"tensor": 2}).scope():
        split = keras_ext.parallelize(model).get_layer("layer")
    assert isinstance(split, HeadParallel)
    rows = library.sequences(2)
    cache = np.random.default_rng(0).normal(size=(2, 2, library.LENGTH, 2, library.SIZE)).astype("float32")
    # With several shards in one process, a cache has all heads.
    expected, found = (each(rows[:, :1], cache=cache, cache_update_index=2) for each in (layer, split))
    for mine, its in zip(expected, found, strict=True):
        np.testing.assert_allclose(mine, its, rtol=0, atol=1e-6)
    mask = np.tri(library.LENGTH, library.LENGTH, 1, dtype=bool)[None]
    np.testing.assert_allclose(layer(rows, mask), split(rows, attention_mask=mask), rtol=0, atol=1e-6)


def test_a_mask_for_each_head_is_used_as_a_whole() -> None:
    class PerHead(library.Attention):
        # Layers of Keras choose the arguments of their calls.
        def call(self, x: Any, attention_mask: Any = None) -> Any:  # type: ignore[override]
            self.bias = 0.0 if attention_mask is None or len(attention_mask.shape) == 3 else attention_mask
            return super().call(x)

        def changed(self, scores: Any, training: bool) -> Any:
            return scores + self.bias

    layer, x = PerHead(name="layer"), keras.Input((library.LENGTH, library.UNITS))
    model = keras.Model(x, layer(x))
    with mesh_strategy({"tensor": 2}).scope():
        split = keras_ext.parallelize(model).get_layer("layer")
    assert isinstance(split, HeadParallel)
    rows = library.sequences(2)
    bias = np.random.default_rng(0).normal(size=(2, library.HEADS, library.LENGTH, library.LENGTH)).astype("float32")
    np.testing.assert_allclose(layer(rows, bias), split(rows, attention_mask=bias), rtol=0, atol=1e-6)


def test_attention_in_a_graph_leaves_no_pieces_of_the_sequence() -> None:
    x = keras.Input((library.LENGTH, library.UNITS))
    y = L.LayerNormalization()(L.Add()([x, made("attention")(x)]))
    model = keras.Model(x, y)
    with mesh_strategy({"tensor": 2}).scope():
        plan = keras_ext.default_plan(model, sequence_parallel=True)
        split = keras_ext.parallelize(model, sequence_parallel=True)
    assert not any(choice.sequence for choice in plan.values())
    np.testing.assert_allclose(split(library.sequences(2)), model(library.sequences(2)), rtol=0, atol=1e-6)


def test_recorded_ops_leave_automatic_names_as_they_are() -> None:
    model = keras.Sequential([keras.Input((library.LENGTH, library.UNITS)), made("gated")])
    with mesh_strategy({"tensor": 2}).scope():
        before = layer_api.name_counters()
        split = keras_ext.parallelize(model)
        assert split.layers[0].gate.records_ops
        found = split(library.sequences(2))
        assert layer_api.name_counters() == before
    np.testing.assert_allclose(found, model(library.sequences(2)), rtol=0, atol=1e-6)


def test_recorded_ops_that_are_not_elementwise_are_computed_as_a_whole() -> None:
    x = library.sequences(3)[:, 0]
    with mesh_strategy({"tensor": 2}).scope():
        up = keras_ext.ColumnParallelDense(4, gather_output=False, records_ops=True)
        down = keras_ext.RowParallelDense(2)
        down.build((None, 4))
        kernel = keras.Variable(np.arange(1.0, 5.0, dtype="float32"))
        up.build((None, library.UNITS))
        between: Any
        for between in (lambda y: ops.softmax(y), lambda y: y * kernel, lambda y: ops.flip(y, axis=-1)):
            expected = down(between(ops.matmul(x, up.kernel)))
            np.testing.assert_allclose(down(between(up(x))), expected, rtol=0, atol=1e-6)


def test_a_plan_of_ones_own_may_ask_for_heads_and_for_rows() -> None:
    x = keras.Input((library.LENGTH, library.UNITS))
    block = library.FeedForward(library.BETWEEN["gated"], made("attention"), name="block")
    model = keras.Model(x, block(x))
    with mesh_strategy({"tensor": 2}).scope():
        plan = {path: choice.kind for path, choice in keras_ext.default_plan(model).items()}
        split = keras_ext.parallelize(model, plan={"attention": "heads", "gate|up": "column", "down": "row"})
        with pytest.raises(ValueError, match="asks for 'heads' for 'block/gate'"):
            keras_ext.parallelize(model, plan={"gate": "heads"})
    assert isinstance(split.get_layer("block").attention, HeadParallel)
    assert plan["block/attention"] == "heads"
    np.testing.assert_allclose(split(library.sequences(2)), model(library.sequences(2)), rtol=0, atol=1e-6)


def test_an_activation_of_ones_own_is_tried() -> None:
    def with_mean(x: Any) -> Any:
        return x - ops.mean(x, axis=-1, keepdims=True)

    def over_rows(x: Any) -> Any:
        return ops.softmax(x, axis=0)

    def approximate(x: Any) -> Any:
        return keras.activations.gelu(x, approximate=True)

    alpha = keras.Variable(0.5)

    def trained(x: Any) -> Any:
        return ops.leaky_relu(x) * alpha

    # A shard's function computes no gradient for a variable that it reads.
    assert not is_elementwise(trained)
    assert is_elementwise(approximate)
    assert not is_elementwise(with_mean)
    assert not is_elementwise(over_rows)
    assert not is_elementwise(keras.activations.softmax)


def test_a_layer_that_two_layers_hold_stays_whole() -> None:
    first = library.FeedForward(library.BETWEEN["gated"], name="first")
    second = library.FeedForward(lambda layer, x: layer.held.up(x), name="second")
    x = keras.Input((library.LENGTH, library.UNITS))
    y = first(x)
    second.held = first
    model = keras.Model(x, second(y))
    with mesh_strategy({"tensor": 2}).scope():
        split = keras_ext.parallelize(model)
    np.testing.assert_allclose(split(library.sequences(2)), model(library.sequences(2)), rtol=0, atol=1e-6)
