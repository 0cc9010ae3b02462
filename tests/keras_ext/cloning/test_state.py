"""Copies have their models' weights in the form that `enable_lora` and `quantize` gave them, and frozen as there."""

from __future__ import annotations

import contextlib
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from keras_ext.cloning import Copies, copy_state
from strategies import layer_api
from tests.keras_ext.cloning.copies import L, staged
from tests.keras_ext.tensor.harness import mesh_strategy

IDS = np.array([[1, 2, 3], [4, 5, 6], [0, 1, 0], [2, 2, 2]])
X = np.random.default_rng(0).standard_normal((8, 6)).astype("float32")


@keras.saving.register_keras_serializable("test_state")
class Block(L.Layer):
    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.up, self.attention = L.Dense(4, name="up"), L.MultiHeadAttention(2, 2, name="attention")

    def build(self, shape: Any) -> None:
        self.up.build(shape)
        self.attention.build(shape, shape)
        self.built = True

    def call(self, x: Any) -> Any:
        return self.up(self.attention(x, x)) + x


def layered() -> Any:
    """Returns a model with all kinds of layers that support LoRA or quantization: alone, and inside other layers."""
    keras.utils.set_random_seed(1)
    inputs = keras.Input((3,), dtype="int32")
    embedding = L.ReversibleEmbedding(7, 4, name="embedding")
    x = embedding(inputs)
    x = Block(name="block")(L.MultiHeadAttention(2, 2, name="attention")(x, x))
    x = L.EinsumDense("abc,cd->abd", (None, 8), bias_axes="d", name="einsum")(x)
    x = embedding(L.Dense(4, name="down")(x), reverse=True)
    return keras.Model(inputs, L.Dense(3, name="head")(x))


def adapt(model: Any) -> None:
    for layer in model._flatten_layers(include_self=False):
        if hasattr(layer, "enable_lora") and layer.built:
            layer.enable_lora(2, lora_alpha=3, b_initializer="glorot_uniform")


def adapt_and_quantize(model: Any) -> None:
    adapt(model)
    model.quantize("int4")


FORMS: dict[str, Callable[[Any], None]] = {
    "lora": adapt,
    "lora+int4": adapt_and_quantize,
    "int8": lambda model: model.quantize("int8"),
    "float8": lambda model: model.quantize("float8"),
}


# Keras warns of each layer that cannot be quantized.
@pytest.mark.filterwarnings("ignore:.*`quantize`:UserWarning", "ignore:Invalid quantization mode:UserWarning")
@pytest.mark.parametrize(
    "form", [pytest.param(each, marks=pytest.mark.parity_all) if each == "int8" else each for each in FORMS]
)
def test_a_copy_has_the_form_of_its_model(form: str) -> None:
    model = layered()
    FORMS[form](model)
    for weight in model.trainable_weights[::2]:
        weight.trainable = False
    copies = [Copies().get(model)]
    copy_state(model, copies[0])
    copies += [staged(model)] if form in ("lora", "int8") else []
    for copy in copies:
        for mine, theirs in zip(copy.weights, model.weights, strict=True):
            for name in ("path", "shape", "dtype", "trainable"):
                assert getattr(mine, name) == getattr(theirs, name)
            np.testing.assert_array_equal(mine, theirs)
        alphas = [[getattr(each, "lora_alpha", None) for each in m._flatten_layers()] for m in (copy, model)]
        assert alphas[0] == alphas[1]
        np.testing.assert_allclose(copy(IDS), model(IDS), rtol=0, atol=1e-6)


def mlp() -> Any:
    keras.utils.set_random_seed(1)
    layers = [L.Dense(8, "relu", name="up"), L.Dense(8, "relu", name="middle"), L.Dense(2, name="head")]
    return keras.Sequential([keras.Input((6,)), *layers])


def freeze(model: Any) -> None:
    model.get_layer("up").kernel.trainable = False
    model.get_layer("up").bias.regularizer = keras.regularizers.L2(0.1)
    model.get_layer("middle").trainable = False
    model.get_layer("head").kernel.constraint = keras.constraints.MaxNorm(0.5)


def trained(model: Any) -> list[Any]:
    with model.distribute_strategy.scope() if model.distribute_strategy else contextlib.nullcontext():
        model.compile(keras.optimizers.SGD(0.5, momentum=0.5), "mse")
    history = model.fit(X, X[:, :2], batch_size=4, epochs=2, shuffle=False, verbose=0).history
    return [*model.get_weights(), np.array(history["loss"])]


@pytest.mark.parametrize("when", ["before", "after", "pipeline"])
def test_what_is_frozen_and_penalized_stays_so(when: str, tmp_path: pathlib.Path) -> None:
    model = mlp()
    freeze(model)
    with mesh_strategy({"tensor": 2, "pipe": 2} if when == "pipeline" else {"tensor": 2}).scope():
        plain = mlp()
        if when != "after":
            freeze(plain)
        split = keras_ext.parallelize(plain)
        if when == "after":
            freeze(split)
        if when == "pipeline":
            split = keras_ext.PipelineModel(split, partition="uniform", num_microbatches=2)
    before = split.get_weights()
    # Biases start at zero, and change if they are trained.
    results = trained(split), trained(model)
    for mine, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
    for position in (0, 2, 3):
        np.testing.assert_array_equal(results[0][position], before[position])
    if when == "after":
        split.save(tmp_path / "m.keras")
        # Files store which layers are frozen, not which weights, and so the slots differ.
        opened = keras.models.load_model(tmp_path / "m.keras", compile=False)
        assert [layer.trainable for layer in opened.layers] == [True, False, True]


def test_a_weight_that_is_frozen_in_part_is_refused() -> None:
    with mesh_strategy({"tensor": 2}).scope():
        split = keras_ext.parallelize(mlp())
        split.compile("sgd", "mse")
    up = split.get_layer("up")
    up.trainable_weights[0].trainable = False
    with pytest.raises(ValueError, match=r"up/kernel' are not all trainable.*layer\.kernel\.trainable = F"):
        split.fit(X, X[:, :2], verbose=0)
    up.kernel.trainable = False
    split.fit(X, X[:, :2], verbose=0)


def test_layers_inside_of_layers_keep_their_paths() -> None:
    model = keras.Sequential(
        [
            keras.Input((5, 3)),
            L.TimeDistributed(L.Dense(4)),
            L.Bidirectional(L.GRU(2, return_sequences=True)),
            L.RNN(L.StackedRNNCells([L.LSTMCell(2), L.SimpleRNNCell(2)])),
            L.SpectralNormalization(L.Dense(4)),
        ]
    )
    copies = [keras.models.clone_model(model), staged(model)]
    with mesh_strategy({"tensor": 2}).scope():
        copies.append(keras_ext.parallelize(model))
    paths = [weight.path for weight in model.weights]
    # The paths in Keras' own copy differ.
    assert [weight.path for weight in copies[0].weights] != paths
    for copy in copies[1:]:
        assert [weight.path for weight in layer_api.joined(copy.weights)] == paths
