"""MixtureOfExperts on one device: equal to the dense sum over experts, in gradients and losses, too."""

from __future__ import annotations

import warnings
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_ext
from tests.keras_ext.expert.dense import DenseMixture, skewed

EXPERTS, HIDDEN, FEATURES = 4, 10, 6
LOADS = ("even", "skewed", "empty", "one")


def pair(top_k: int, load: str, *, bias: bool = False, capacity: float | None = None) -> tuple[Any, Any, Any]:
    """Returns the sparse layer and the dense one with the same weights, and tokens."""
    tokens, kernel = skewed(24, FEATURES, EXPERTS, load)
    sparse = keras_ext.MixtureOfExperts(
        EXPERTS,
        HIDDEN,
        top_k,
        load_balancing_loss=0.1,
        z_loss=0.01,
        router_bias=0.1 if bias else None,
        capacity_factor=capacity,
    )
    dense = DenseMixture(EXPERTS, HIDDEN, top_k, 0.1, 0.01, 0.1 if bias else 0.0, capacity)
    inputs = tokens.reshape(4, 6, FEATURES)
    for layer in (sparse, dense):
        layer.build(inputs.shape)
    sparse.layers[0].kernel.assign(kernel)
    for variables in ("trainable_variables", "non_trainable_variables"):
        for one, other in zip(getattr(sparse, variables), getattr(dense, variables), strict=True):
            other.assign(one)
    return sparse, dense, inputs


def computed(layer: Any, inputs: Any, mask: Any = None) -> list[Any]:
    """Returns output, losses, and the gradients with respect to inputs and weights of a scalar made of all of them."""
    inputs = tf.constant(inputs)
    with tf.GradientTape() as tape:
        tape.watch(inputs)
        output = layer(inputs, training=True, mask=mask)
        losses = list(layer.losses)
        total = ops.sum(ops.sin(output)) + sum(losses)
    gradients = tape.gradient(total, [inputs, *(v.value for v in layer.trainable_variables)])
    return [
        np.asarray(tf.convert_to_tensor(value))
        for value in (output, *losses, *gradients, *layer.trainable_variables, *layer.non_trainable_variables)
    ]


def assert_equal(one: list[Any], other: list[Any]) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("load", LOADS)
def test_equals_the_dense_sum(load: str) -> None:
    for top_k in (1, 2, EXPERTS):
        sparse, dense, inputs = pair(top_k, load)
        assert_equal(computed(sparse, inputs), computed(dense, inputs))


def test_mask_bias_and_capacity_equal_the_dense_sum() -> None:
    mask = np.arange(6) < np.array([[6], [3], [0], [5]])
    for load in ("skewed", "one"):
        for arguments in ({"bias": True}, {"capacity": 0.5}, {"capacity": 1.25}, {"bias": True, "capacity": 1.0}):
            for own in (None, mask):
                sparse, dense, inputs = pair(2, load, **arguments)
                assert_equal(computed(sparse, inputs, own), computed(dense, inputs, own))
    # Nothing is dropped in inference.
    sparse, dense, inputs = pair(2, "one", capacity=0.25)
    np.testing.assert_allclose(sparse(inputs), dense(inputs), atol=1e-6)
    assert np.abs(sparse(inputs) - sparse(inputs, training=True)).max() > 0.01


def test_work_is_that_of_the_chosen_experts() -> None:
    sizes: list[int] = []
    sparse, _, inputs = pair(2, "skewed")
    original = ops.matmul

    def counted(a: Any, b: Any) -> Any:
        sizes.append(int(a.shape[0]))
        return original(a, b)

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr("keras_ext.expert.layer.ops.matmul", counted)
        sparse(inputs)
    # Products with three matrices per expert.
    assert sum(sizes) == 3 * 24 * 2
    assert len(sizes) == 3 * EXPERTS


def test_any_rank_and_unknown_sizes() -> None:
    for shape in ((FEATURES,), (None, FEATURES), (2, None, FEATURES)):
        inputs = keras.Input(shape)
        model = keras.Model(inputs, keras_ext.MixtureOfExperts(EXPERTS, HIDDEN, shared_hidden_dim=5)(inputs))
        assert model.output.shape == (None, *shape)
        x = np.ones((3, *(4 if size is None else size for size in shape)), "float32")
        assert model.predict(x, verbose=0).shape == x.shape


def test_mask_is_passed_on() -> None:
    layer = keras_ext.MixtureOfExperts(EXPERTS, HIDDEN)
    masked = keras.layers.Masking()(np.array([[[1.0, 2.0], [0.0, 0.0]]], "float32"))
    np.testing.assert_array_equal(layer(masked)._keras_mask, [[True, False]])


def test_jitter_is_drawn_in_training_only() -> None:
    layer = keras_ext.MixtureOfExperts(EXPERTS, HIDDEN, router_jitter=0.9)
    x = np.random.default_rng(0).normal(size=(20, FEATURES)).astype("float32")
    np.testing.assert_array_equal(layer(x), layer(x))
    assert np.abs(layer(x, training=True) - layer(x, training=True)).max() > 0


def test_mixed_precision_routes_in_float32() -> None:
    layer = keras_ext.MixtureOfExperts(EXPERTS, HIDDEN, shared_hidden_dim=4, use_bias=True, dtype="mixed_float16")
    x = np.random.default_rng(0).normal(size=(20, FEATURES)).astype("float16")
    assert layer(x).dtype == "float16"
    assert {variable.dtype for variable in layer.variables} == {"float32"}
    plain = keras_ext.MixtureOfExperts(EXPERTS, HIDDEN, shared_hidden_dim=4, use_bias=True)
    plain.build(x.shape)
    plain.set_weights(layer.get_weights())
    np.testing.assert_allclose(layer(x), plain(x.astype("float32")), atol=5e-3)


def test_xla_is_left_out_with_a_warning() -> None:
    model = keras.Sequential([keras.Input((FEATURES,)), keras_ext.MixtureOfExperts(EXPERTS, HIDDEN)])
    with pytest.warns(UserWarning, match="jit_compile"):
        model.compile("sgd", "mse", jit_compile=True)
    model.fit(np.ones((4, FEATURES)), np.ones((4, FEATURES)), verbose=0)


def test_config() -> None:
    layer = keras_ext.MixtureOfExperts(
        EXPERTS,
        HIDDEN,
        3,
        activation="relu",
        gated=False,
        kernel_regularizer="l2",
        kernel_constraint="max_norm",
        name="x",
    )
    layer.build((None, FEATURES))
    again = keras_ext.MixtureOfExperts.from_config(layer.get_config())
    assert {**again.get_config(), "model": 0} == {**layer.get_config(), "model": 0}
    with pytest.raises(ValueError, match="not built"):
        keras.layers.serialize(again)


@pytest.mark.parametrize(
    "arguments",
    [{"top_k": 5}, {"router_activation": "relu"}, {"router_jitter": 1.0}, {"z_loss": -1.0}, {"capacity_factor": 0.0}],
)
def test_refuses(arguments: dict[str, Any]) -> None:
    [(name, value)] = arguments.items()
    with pytest.raises(ValueError, match=f"Received: .*{value}"):
        keras_ext.MixtureOfExperts(EXPERTS, HIDDEN, **arguments)
    assert name


def test_nothing_is_warned_of() -> None:
    model = keras.Sequential([keras.Input((FEATURES,)), keras_ext.MixtureOfExperts(EXPERTS, HIDDEN)])
    model.compile("sgd", "mse")
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        model.fit(np.ones((4, FEATURES)), np.ones((4, FEATURES)), verbose=0)
