"""ParallelMultiHeadAttention and ParallelGroupQueryAttention: the results of Keras' layers, from shards."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from keras_ext.tensor.split_tensor import SplitTensor
from tests.keras_ext.tensor.attention_models import (
    LENGTH,
    SIZE,
    Wire,
    classifier,
    grouped,
    multi,
    sequences,
    to_itself,
)
from tests.keras_ext.tensor.harness import MESHES, assert_parity, mesh_strategy
from tests.releases import marks_of
from tests.strategies.parity.harness import NUM_ROWS, features, labels

BOTH = {"data": 2, "tensor": 2}


def tokens() -> np.ndarray:
    """Returns token ids; 0 is padding at the end, in some rows of all tokens but one."""
    rng = np.random.default_rng(1)
    lengths = rng.integers(1, LENGTH + 1, size=(NUM_ROWS, 1))
    return np.where(np.arange(LENGTH) < lengths, rng.integers(1, 9, (NUM_ROWS, LENGTH)), 0)


def masks(seed: int, *shape: int) -> np.ndarray:
    """Returns a random mask; the first position is always True, so that no mask is empty."""
    mask = np.random.default_rng(seed).random((NUM_ROWS, *shape)) < 0.6
    mask[..., 0] = True
    return mask


def classified(split: bool) -> keras.Model:
    return classifier(multi(split))


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_with_adam_and_global_clipnorm(axes: Mapping[str, int]) -> None:
    assert_parity(classified, sequences(), labels(), axes, predict=True)


def with_padding(layer: Any) -> tuple[Any, Any]:
    x = keras.Input((LENGTH,), dtype="int32")
    embedded = keras.layers.Embedding(9, SIZE, mask_zero=True)(x)
    return x, embedded + layer(embedded, embedded)


def with_attention_mask(layer: Any) -> tuple[Any, Any]:
    x, mask = keras.Input((LENGTH, SIZE)), keras.Input((LENGTH, LENGTH), dtype="bool")
    return [x, mask], layer(x, x, attention_mask=mask, use_causal_mask=True)


def with_masks(layer: Any) -> tuple[Any, Any]:
    x, y, z = (keras.Input((LENGTH, SIZE)) for _ in range(3))
    given = [keras.Input((LENGTH,), dtype="bool") for _ in range(3)]
    names = ("query_mask", "value_mask", "key_mask")
    return [x, y, z, *given], layer(x, y, z, **dict(zip(names, given, strict=True)))


def across(layer: Any) -> tuple[Any, Any]:
    x, y, z = keras.Input((3, SIZE)), keras.Input((LENGTH, SIZE)), keras.Input((LENGTH, SIZE))
    return [x, y, z], layer(x, y, key=z)


def with_scores(layer: Any) -> tuple[Any, Any]:
    x = keras.Input((LENGTH, SIZE))
    return x, layer(x, x, return_attention_scores=True, use_causal_mask=True)


CALLS: Mapping[str, tuple[Wire, Any]] = {
    "padding": (with_padding, tokens()),
    "attention mask": (with_attention_mask, [sequences(), masks(2, LENGTH, LENGTH)]),
    "masks of query, value and key": (
        with_masks,
        [sequences(1), sequences(2), sequences(3), masks(4, LENGTH), masks(5, LENGTH), masks(6, LENGTH)],
    ),
    "causal": (lambda layer: to_itself(layer, use_causal_mask=True), sequences()),
    "another key": (across, [sequences(1, 3), sequences(2), sequences(3)]),
    "scores": (with_scores, sequences()),
}


# Keras' own layer for grouped queries passes masks to layers that do not support them.
@pytest.mark.filterwarnings("ignore:(.*\n)*.*passed an input with a mask:UserWarning")
@pytest.mark.parametrize(
    "in_groups", [["causal"], pytest.param([name for name in CALLS if name != "causal"], marks=pytest.mark.parity_all)]
)
def test_calls(in_groups: list[str]) -> None:
    """All calls are in one model, which is traced once; some layers use grouped queries."""

    def model(split: bool) -> keras.Model:
        def wire(_: Any) -> tuple[Any, Any]:
            layers = [(grouped if name in in_groups else multi)(split) for name in CALLS]
            wired = [of_call(layer) for layer, (of_call, _) in zip(layers, CALLS.values(), strict=True)]
            inputs, outputs = zip(*wired, strict=True)
            return keras.tree.flatten(inputs), keras.tree.flatten(outputs)

        return classifier(None, wire)

    assert_parity(model, keras.tree.flatten([x for _, x in CALLS.values()]), labels(), {"tensor": 2})


class Largest(keras.regularizers.Regularizer):
    """A penalty that needs the whole weight."""

    def __call__(self, x: Any) -> Any:
        return 0.01 * keras.ops.max(keras.ops.abs(x))


ARGUMENTS: Mapping[str, tuple[Any, dict[str, Any]]] = {
    "no bias, regularizer of a whole": (multi, {"use_bias": False, "kernel_regularizer": Largest()}),
    "gate, activity": (multi, {"use_gate": True, "activity_regularizer": "l2", "value_dim": 2}),
    "initializers, window": (
        multi,
        {
            "kernel_initializer": keras.initializers.HeNormal(seed=3),
            "bias_initializer": "random_normal",
            "sliding_window": 2,
        },
    ),
    "regularizers, shape of outputs": (
        multi,
        # No "l1" for biases: the sign of a key bias comes from rounding, as above.
        {"kernel_regularizer": "l1", "bias_regularizer": "l2", "output_shape": (2, 3), "value_dim": 4},
    ),
    "constraints": (
        multi,
        {"kernel_constraint": keras.constraints.MaxNorm(0.8, axis=[0, 1]), "bias_constraint": "non_neg"},
    ),
    "grouped, gate, window": (grouped, {"use_gate": True, "sliding_window": 2, "use_bias": False}),
    "grouped, activity, constraint": (grouped, {"activity_regularizer": "l1", "kernel_constraint": "unit_norm"}),
    "as many keys as queries": (grouped, {"num_key_value_heads": 4}),
}


@pytest.mark.parametrize(
    ("make", "arguments"),
    [pytest.param(*case, id=name, marks=marks_of(*case[1])) for name, case in ARGUMENTS.items()],
)
def test_arguments_of_the_plain_layer(make: Any, arguments: dict[str, Any]) -> None:
    def wire(layer: Any) -> tuple[Any, Any]:
        x = keras.Input((LENGTH, SIZE))
        return x, layer(x, x)

    assert_parity(lambda split: classifier(make(split, **arguments), wire), sequences(), labels(), BOTH)


def test_mixed_precision() -> None:
    # Shards round partial sums to 8 bits of mantissa before adding them, where one device rounds the sum.
    assert_parity(
        lambda split: classifier(multi(split)),
        sequences(),
        labels(),
        {"tensor": 2},
        dtype_policy="mixed_bfloat16",
        tolerance=3e-2,
    )


def test_several_dims_to_attend_over() -> None:
    x = features(4, 2, 3, 3, SIZE)
    wholes = []
    for split in (False, True):
        keras.utils.set_random_seed(2)
        with mesh_strategy({"tensor": 2}).scope():
            layer = multi(split, attention_axes=(2, 3))
            wholes.append(layer(x, x, return_attention_scores=True))
    assert wholes[1][1].shape == (4, 2, 4, 3, 3, 3, 3)
    for plain, found in zip(*wholes, strict=True):
        np.testing.assert_allclose(found, plain, atol=1e-6)


def test_gradients_are_those_of_the_plain_layer_and_where_the_shards_are() -> None:
    x = tf.constant(sequences())

    def made(split: bool) -> Any:
        keras.utils.set_random_seed(5)
        layer = multi(split)
        layer.build(x.shape, x.shape)
        return layer

    def gradients(layer: Any) -> tuple[Any, list[Any]]:
        with tf.GradientTape(persistent=True) as tape:
            tape.watch(x)
            y = layer(x, x)
            loss = keras.ops.mean(y * y)
        return tape.gradient(loss, x), tape.gradient(loss, [v.value for v in layer.trainable_variables])

    strategy = mesh_strategy({"tensor": 2})
    with strategy.scope():
        split = made(True)
    (of_x, wanted), (found_of_x, found) = gradients(made(False)), strategy.run(gradients, (split,))
    np.testing.assert_allclose(found_of_x, of_x, rtol=0, atol=1e-6)
    for i, dim in enumerate([1, 0, 1, 0, 1, 0, 0]):
        whole = np.concatenate(found[2 * i : 2 * i + 2], dim)
        np.testing.assert_allclose(whole, wanted[i], rtol=0, atol=1e-6)
    np.testing.assert_allclose(found[-1], wanted[-1], rtol=0, atol=1e-6)
    assert [g.device[-5:] for g in found] == ["CPU:0", "CPU:1"] * 7 + ["CPU:0"]


def test_takes_pieces() -> None:
    x = sequences()
    with mesh_strategy({"tensor": 2}).scope():
        layer = multi(True)
        column = keras_ext.ColumnParallelDense(SIZE, gather_output=False)
        column.build((None, LENGTH, SIZE))
        pieces = column(x)
        assert isinstance(pieces, SplitTensor)
        np.testing.assert_array_equal(layer(pieces, pieces), layer(pieces.whole(), pieces.whole()))


class TestRefusals:
    def test_heads_that_do_not_divide(self) -> None:
        x = sequences()
        with mesh_strategy({"tensor": 4}).scope():
            with pytest.raises(ValueError, match=r"num_heads.*4 or 8.* Received: 6"):
                multi(True, num_heads=6)(x, x)
            with pytest.raises(ValueError, match=r"num_query_heads.*Received: 6"):
                grouped(True, num_query_heads=6)(x, x)
            with pytest.raises(ValueError, match=r"num_key_value_heads.*, 4, .*Received: 2"):
                grouped(True)(x, x)

    @pytest.mark.parametrize("make", [multi, grouped])
    def test_flash_attention_and_quantization(self, make: Any) -> None:
        with pytest.raises(ValueError, match=r"flash attention.*flash_attention=True"):
            make(True, flash_attention=True)
        with pytest.raises(ValueError, match="int8"):
            make(True, dtype="int8_from_float32")

    def test_keys_that_do_not_go_with_values(self) -> None:
        x = sequences()
        with pytest.raises(ValueError, match="must be equal"):
            multi(True)(x, x, key=x[:, 1:])
