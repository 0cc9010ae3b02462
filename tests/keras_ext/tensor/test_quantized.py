"""Layers quantized to int8, split over "tensor": outputs have the bits of the whole layers, also with LoRA."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from strategies import layer_api
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.keras_ext.tensor.test_lora import data, trained

# Keras warns of each layer that cannot be quantized.
pytestmark = pytest.mark.filterwarnings("ignore:Layer .* does not have a `quantize`:UserWarning")

L = keras.layers


def sequences() -> Any:
    """Returns dense and einsum layers, cut along their last dim, along another, and unevenly."""
    inputs = keras.Input((6, 8))
    x = L.Dense(16, "relu", name="up")(inputs)
    x = L.Dense(8, "softmax", name="down")(x)
    x = L.EinsumDense("abc,cde->abde", (6, 4, 4), bias_axes="de", name="to_heads", activation="relu")(x)
    x = L.EinsumDense("abde,def->abf", (6, 8), bias_axes="f", name="from_heads")(x)
    x = L.EinsumDense("abc,cd->abd", (6, 5), bias_axes="bd", name="bias_of_positions", activation="tanh")(x)
    return keras.Model(inputs, L.Dense(3, "sigmoid", name="last", use_bias=False)(x))


def tied(tie_weights: bool = True) -> Any:
    inputs = keras.Input((6,), dtype="int32")
    table = L.ReversibleEmbedding(11, 8, tie_weights=tie_weights, mask_zero=True, logit_soft_cap=2.0, name="table")
    x = L.Add()([table(inputs), L.Embedding(11, 8, name="other")(inputs)])
    return keras.Model(inputs, table(L.LayerNormalization()(x), reverse=True))


def untied() -> Any:
    return tied(False)


def made(build: Callable[[], Any], lora: bool) -> Any:
    """Returns a quantized model, compiled, with adapters that are not zero if `lora`."""
    keras.utils.set_random_seed(3)
    model = build()
    model.quantize("int8")
    for layer in model._flatten_layers(include_self=False):
        if lora and hasattr(layer, "enable_lora"):
            layer.enable_lora(2, lora_alpha=3, b_initializer=keras.initializers.RandomNormal(0.0, 0.1))
    model.compile(keras.optimizers.Adam(1e-2, epsilon=1e-3), "mse")
    return model


ONE, BOTH = {"tensor": 2}, {"data": 2, "tensor": 2}
GATE = ((sequences, True, ONE), (tied, True, ONE), (untied, False, BOTH))
ALL = [(build, lora, axes) for build in (sequences, tied, untied) for lora in (False, True) for axes in (ONE, BOTH)]


@pytest.mark.parametrize(
    ("build", "lora", "axes"),
    [*GATE, *(pytest.param(*each, marks=pytest.mark.parity_all) for each in ALL if each not in GATE)],
)
def test_equals_the_whole_layers(
    build: Callable[[], Any], lora: bool, axes: Mapping[str, int], tmp_path: pathlib.Path
) -> None:
    plain = made(build, lora)
    x, _ = data(plain)
    with mesh_strategy(axes).scope():
        split = keras_ext.parallelize(plain)
    if not lora:
        # Without adapters there are no sums over shards.
        np.testing.assert_array_equal(split(x), plain(x))
    np.testing.assert_allclose(split(x), plain(x), rtol=0, atol=1e-6)
    for mine, theirs in zip(trained(split), trained(plain), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
    assert [weight.trainable for weight in layer_api.joined(split.weights)] == [w.trainable for w in plain.weights]
    split.save(tmp_path / "split.keras")
    plain.save(tmp_path / "plain.keras")
    mine, theirs = (keras.saving.load_model(tmp_path / f"{name}.keras") for name in ("split", "plain"))
    assert [type(layer) for layer in mine.layers] == [type(layer) for layer in theirs.layers]
    for one, other in zip(mine.get_weights(), theirs.get_weights(), strict=True):
        # Scales are in the hundreds.
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    plain.save_weights(tmp_path / "plain.weights.h5")
    split.load_weights(tmp_path / "plain.weights.h5")
    plain.load_weights(tmp_path / "plain.weights.h5")
    for one, other in zip(split.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)


def test_each_device_holds_its_part() -> None:
    for build, names in ((sequences, ("up", "down", "to_heads", "from_heads")), (tied, ("table", "other"))):
        model = made(build, False)
        with mesh_strategy({"tensor": 2}).scope():
            plan, split = keras_ext.default_plan(model), keras_ext.parallelize(model)
        assert {plan[name].kind for name in names} <= {"column", "vocab"}
        assert plan.split_share > 0.8
        for weight in layer_api.joined(split.weights):
            if "int8" in weight.dtype and weight.shape[-1] > 1:
                assert isinstance(weight, layer_api.SplitWeight), weight.path
                assert max(weight.sizes) <= -(-weight.shape[weight.dim] // 2)
    with mesh_strategy({"tensor": 2}).scope():
        split = keras_ext.parallelize(tied())
    with pytest.raises(ValueError, match=r"cannot be quantized: it is split already\. Quantize the model first"):
        split.get_layer("table").quantize("int8")


def test_half_precision() -> None:
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16")
    try:
        for build in (sequences, tied):
            plain = made(build, False)
            with mesh_strategy({"tensor": 2}).scope():
                split = keras_ext.parallelize(plain)
            x, _ = data(plain)
            mine, theirs = (keras.ops.cast(model(x), "float32") for model in (split, plain))
            np.testing.assert_array_equal(mine, theirs)
    finally:
        keras.config.set_dtype_policy(before)
