"""ParallelTransformerBlock: the results of plain layers, from shards; and sequence parallelism between blocks."""

from __future__ import annotations

import functools
import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from keras_ext.tensor.split_tensor import SplitTensor
from tests.keras_ext.tensor.harness import MESHES, assert_parity, mesh_strategy

UNITS, HEADS, HIDDEN, CLASSES = 8, 4, 16, 5


def plain_block(x: Any, memory: Any, arguments: Mapping[str, Any]) -> Any:
    """Returns the output of the block as a user of Keras would write it."""
    first, causal = arguments.get("normalize_first", True), arguments.get("kind") == "decoder"

    def with_shortcut(part: Any, x: Any) -> Any:
        normalize = keras.layers.LayerNormalization(epsilon=1e-5)
        y = keras.layers.Add()([x, part(normalize(x) if first else x)])
        return y if first else normalize(y)

    x = with_shortcut(lambda y: keras.layers.MultiHeadAttention(HEADS, UNITS // HEADS)(y, y, use_causal_mask=causal), x)
    if memory is not None:
        x = with_shortcut(lambda y: keras.layers.MultiHeadAttention(HEADS, UNITS // HEADS)(y, memory), x)
    up = keras.layers.Dense(HIDDEN, arguments.get("activation", "gelu"))
    return with_shortcut(lambda y: keras.layers.Dense(UNITS)(up(y)), x)


def tagger(split: bool, cross: bool = False, num_blocks: int = 1, **arguments: Any) -> keras.Model:
    """Returns blocks between an embedding with a mask and a classifier of each position."""
    ids = keras.Input((7,), dtype="int32", name="ids")
    inputs: Any = ids
    # Normalization would magnify the rounding of embeddings as small as Keras' own.
    x = keras.layers.Embedding(
        11, UNITS, mask_zero=True, embeddings_initializer=keras.initializers.RandomNormal(stddev=1.0)
    )(ids)
    memory = None
    if cross:
        memory = keras.Input((6, 4), name="memory")
        inputs = [ids, memory]
    for _ in range(num_blocks):
        if split:
            more: Any = {"memory_units": 4} if cross else {}
            block = keras_ext.ParallelTransformerBlock(UNITS, HEADS, HIDDEN, **more, **arguments)
            x = block([x, memory] if cross else x)
        else:
            x = plain_block(x, memory, arguments)
    normalization = keras_ext.ShardwiseLayerNormalization if split else keras.layers.LayerNormalization
    x = normalization()(x)
    model = keras.Model(inputs, keras.layers.Dense(CLASSES, activation="softmax")(x))
    # The gradient of the key bias is zero up to rounding; a smaller epsilon would divide it by itself.
    optimizer = keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=0.5)
    model.compile(optimizer, "sparse_categorical_crossentropy", weighted_metrics=["accuracy"])
    return model


def sentences() -> Any:
    ids = np.random.default_rng(3).integers(1, 11, (51, 7)).astype("int32")
    for row, ids_of_row in enumerate(ids):
        ids_of_row[7 - row % 4 :] = 0
    return ids


def tags() -> Any:
    return np.random.default_rng(4).integers(0, CLASSES, (51, 7))


def memories() -> Any:
    return np.random.default_rng(5).normal(size=(51, 6, 4)).astype("float32")


def data(cross: bool) -> Any:
    if not cross:
        return sentences()
    return {"ids": sentences(), "memory": np.random.default_rng(5).normal(size=(51, 6, 4)).astype("float32")}


sequence_parallel = functools.partial(tagger, sequence_parallel=True)


# The length of 7 is not divisible on any mesh.
@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_parity_with_sequence_parallelism(axes: Mapping[str, int]) -> None:
    # Between blocks, and before the last normalization, the sequence stays split.
    num_blocks = 2 if axes == MESHES["tensor=2"] else 1
    make = functools.partial(sequence_parallel, num_blocks=num_blocks)
    assert_parity(make, sentences(), tags(), axes, predict=True)


KINDS = {
    "encoder": {},
    "decoder, normalized after": {"kind": "decoder", "normalize_first": False, "activation": "relu"},
    "decoder with a memory, sequence parallel": {"kind": "decoder", "cross": True, "sequence_parallel": True},
}


@pytest.mark.parametrize("arguments", KINDS.values(), ids=KINDS)
def test_parity_of_kinds(arguments: Mapping[str, Any]) -> None:
    make = functools.partial(tagger, **arguments)
    assert_parity(make, data("cross" in arguments), tags(), {"tensor": 2}, predict=True)


# Blocks of each layer alone run in mixed precision in the tests of these layers.
@pytest.mark.parity_all
@pytest.mark.parametrize("axes", [{"tensor": 2}, MESHES["data=2,tensor=2"]])
def test_mixed_bfloat16(axes: Mapping[str, int]) -> None:
    # Sums in another order round differently, to 8 bits.
    kwargs: Any = {"dtype_policy": "mixed_bfloat16", "tolerance": 3e-2}
    assert_parity(sequence_parallel, sentences(), tags(), axes, **kwargs)


def test_in_pieces_between_blocks() -> None:
    with mesh_strategy({"tensor": 2}).scope():
        block = keras_ext.ParallelTransformerBlock(UNITS, HEADS, HIDDEN, dropout=0.1, sequence_parallel=True)
        x = np.random.default_rng(0).normal(size=(2, 5, UNITS)).astype("float32")
        first = block(x, training=True)
        second = block(first, training=True)
    assert isinstance(first, SplitTensor)
    assert isinstance(second, SplitTensor)
    assert [piece.shape for piece in second.pieces] == [(2, 3, UNITS), (2, 2, UNITS)]
    assert [piece.device[-5:] for piece in second.pieces] == ["CPU:0", "CPU:1"]


def test_is_a_model_of_plain_layers_in_files(tmp_path: pathlib.Path) -> None:
    keras.utils.set_random_seed(1)
    with mesh_strategy({"tensor": 2}).scope():
        model = tagger(True, cross=True, sequence_parallel=True, dropout=0.1)
    model.fit(data(True), tags(), verbose=0)
    model.save(tmp_path / "a name.keras")
    # Keras warns of this for all models inside models, although masks pass.
    with pytest.warns(UserWarning, match="does not support masking"):
        plain = keras.models.load_model(tmp_path / "a name.keras")
    blocks = [layer for layer in plain.layers if isinstance(layer, keras.Model)]
    assert [type(layer).__name__ for layer in blocks] == ["Functional"]
    classes = {type(layer) for block in blocks for layer in block.layers} - {keras.layers.InputLayer}
    named = ("Add", "Dense", "Dropout", "LayerNormalization", "MultiHeadAttention")
    assert classes == {getattr(keras.layers, name) for name in named}
    with pytest.warns(UserWarning, match="does not support masking"):
        found = plain.predict(data(True), verbose=0)
    np.testing.assert_allclose(found, model.predict(data(True), verbose=0), rtol=0, atol=1e-6)


def test_is_made_of_its_config_again() -> None:
    block = keras_ext.ParallelTransformerBlock(
        8, 2, 12, "decoder", memory_units=3, dropout=0.1, kernel_initializer="he_normal", name="a name"
    )
    again = keras_ext.ParallelTransformerBlock.from_config(block.get_config())
    assert again.get_config() == block.get_config()
    assert [weight.shape for weight in again.weights] == [weight.shape for weight in block.weights]
    assert type(again.get_layer("up").kernel_initializer) is keras.initializers.HeNormal


def test_refuses() -> None:
    with pytest.raises(ValueError, match="Received: kind='both'"):
        keras_ext.ParallelTransformerBlock(8, 2, 12, "both")
    with pytest.raises(ValueError, match="Received: units=8, num_heads=3"):
        keras_ext.ParallelTransformerBlock(8, 3, 12)
    with mesh_strategy({"tensor": 4}).scope(), pytest.raises(ValueError, match=r"num_heads.*Received: 2"):
        keras_ext.ParallelTransformerBlock(8, 2, 12)
    with mesh_strategy({"tensor": 2}).scope():
        dense = keras_ext.RowParallelDense(4, sequence_parallel=True)
        with pytest.raises(ValueError, match=r"sequence_parallel=True.*input_shape=\(None, 4\)"):
            dense.build((None, 4))
        with pytest.raises(ValueError, match="sequence_parallel=True the activation"):
            keras_ext.RowParallelDense(4, "softmax", sequence_parallel=True)
