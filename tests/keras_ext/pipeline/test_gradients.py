"""Frozen weights in stages: single weights, layers, whole stages, and kernels under adapters."""

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

L = keras.layers
ROWS = 8


class Block(keras.layers.Layer):
    """A layer that holds others, as in libraries: frozen itself, with trainable parts."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.into, self.back = L.EinsumDense("ab,bc->ac", 16, bias_axes="c"), L.Dense(8)

    def build(self, shape: Any) -> None:
        self.into.build(shape)
        self.back.build((shape[0], 16))

    def call(self, x: Any) -> Any:
        return x + self.back(keras.activations.tanh(self.into(x)))


def blocks() -> Any:
    """Returns four layers, one in each of four stages, or two in each of two."""
    inputs = keras.Input((8,))
    x = L.Dense(8, "tanh", name="first", kernel_regularizer="l2")(inputs)
    x = Block(name="second")(Block(name="third")(x))
    return keras.Model(inputs, L.Dense(3, name="last")(x))


def with_adapters(model: Any) -> None:
    """Follows KerasHub's recipe: freezes all layers, and unfreezes those with adapters."""
    for layer in model._flatten_layers(include_self=False):
        layer.trainable = False
    for block in (model.get_layer("second"), model.get_layer("third")):
        block.into.trainable = True
        block.into.enable_lora(2, b_initializer=keras.initializers.RandomNormal(0.0, 0.1))


def with_frozen_kernels(model: Any) -> None:
    model.get_layer("first").kernel.trainable = False
    model.get_layer("second").back.bias.trainable = False


def but_the_last(model: Any) -> None:
    for layer in model.layers[:-1]:
        layer.trainable = False


def but_the_first(model: Any) -> None:
    for layer in model.layers[2:]:
        layer.trainable = False


def weights_and_losses(
    freeze: Callable[[Any], None], axes: Mapping[str, int] | None = None, **arguments: Any
) -> tuple[Any, list[np.ndarray]]:
    keras.utils.set_random_seed(1)
    model = blocks()
    freeze(model)

    def compiled(model: Any) -> Any:
        model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3, global_clipnorm=0.5), "mse")
        return model

    if axes is None:
        compiled(model)
    else:
        with mesh_strategy(axes).scope():
            if "tensor" in axes:
                model = keras_ext.parallelize(model)
            model = compiled(keras_ext.PipelineModel(model, num_microbatches=4, partition="uniform", **arguments))
    generator = np.random.default_rng(0)
    x, y = (generator.normal(size=(2 * ROWS, size)).astype("float32") for size in (8, 3))
    losses = model.fit(x, y, batch_size=ROWS, epochs=1, shuffle=False, verbose=0).history["loss"]
    return model, [np.asarray(losses), *model.get_weights()]


@pytest.mark.parametrize(
    ("freeze", "axes", "arguments"),
    [
        # In four stages on two devices below.
        pytest.param(with_adapters, {"pipe": 4}, {}, marks=pytest.mark.parity_all),
        (with_adapters, {"pipe": 2}, {"schedule": "interleaved_1f1b"}),
        pytest.param(with_adapters, {"pipe": 2}, {"schedule": "eager_1f1b"}, marks=pytest.mark.parity_all),
        pytest.param(with_adapters, {"data": 2, "pipe": 2, "tensor": 2}, {}, marks=pytest.mark.parity_all),
        (with_adapters, {"data": 2, "pipe": 2}, {"schedule": "gpipe", "remat": "all"}),
        (with_adapters, {"pipe": 2, "tensor": 2}, {}),
        (with_frozen_kernels, {"pipe": 2}, {}),
        (but_the_last, {"pipe": 4}, {}),
        (but_the_first, {"pipe": 4}, {"schedule": "gpipe", "remat": "all"}),
    ],
)
def test_parity(freeze: Any, axes: Mapping[str, int], arguments: Mapping[str, Any], tmp_path: pathlib.Path) -> None:
    plain, wanted = weights_and_losses(freeze)
    model, found = weights_and_losses(freeze, axes, **arguments)
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)
    whole = layer_api.joined(model.weights)
    assert [weight.trainable for weight in whole] == [weight.trainable for weight in plain.weights]
    # Frozen weights have no slots.
    assert len(layer_api.joined(model.optimizer.variables)) == len(plain.optimizer.variables)
    model.save_weights(tmp_path / "staged.weights.h5")
    unadapted = blocks()
    unadapted.load_weights(tmp_path / "staged.weights.h5")
    x = np.ones((2, 8), "float32")
    np.testing.assert_allclose(unadapted.predict(x, verbose=0), plain.predict(x, verbose=0), rtol=1e-6, atol=1e-6)


def test_nothing_is_trained() -> None:
    def freeze(model: Any) -> None:
        model.trainable = False

    with pytest.warns(UserWarning, match="does not have any trainable weights"):
        _, found = weights_and_losses(freeze, {"pipe": 2})
    keras.utils.set_random_seed(1)
    for one, other in zip(blocks().get_weights(), found[1:], strict=True):
        np.testing.assert_array_equal(other, one)
