"""LoRA in split layers: the numbers of one device, frozen kernels, sharded adapters, and files that Keras merges."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from strategies import layer_api
from tests.keras_ext.tensor.harness import mesh_strategy

L = keras.layers
ROWS = 8


def sequences() -> Any:
    """Returns dense and einsum layers, split along their last dim and along others, and attention."""
    inputs = keras.Input((6, 8))
    x = L.Dense(16, "relu", name="up", kernel_regularizer="l2")(inputs)
    x = L.Dense(8, name="down")(x)
    x = L.LayerNormalization()(L.Add()([inputs, x]))
    x = L.EinsumDense("abc,cde->abde", (6, 4, 4), bias_axes="de", name="to_heads", activation="relu")(x)
    x = L.EinsumDense("abde,def->abf", (6, 8), bias_axes="f", name="from_heads")(x)
    x = L.MultiHeadAttention(2, 4, name="attention")(x, x)
    x = L.GroupQueryAttention(4, 4, 2, name="grouped")(x, x)
    x = L.Dense(6, "sigmoid", name="gathered_output", use_bias=False)(x)
    return keras.Model(inputs, x)


def images() -> Any:
    inputs = keras.Input((6, 6, 3))
    x = L.Conv2D(8, 3, padding="same", activation="relu")(inputs)
    x = L.Conv2D(4, 3, padding="same")(x)
    x = L.Conv2D(8, 3, padding="same", groups=2)(x)
    x = L.Conv2D(4, 1)(x)
    x = L.Reshape((36, 4))(x)
    x = L.Conv1D(64, 3)(x)
    x = L.Conv1DTranspose(4, 3)(x) if hasattr(L.Conv1DTranspose, "enable_lora") else L.Conv1D(4, 3)(x)
    return keras.Model(inputs, L.Dense(3, "tanh")(L.Flatten()(x)))


def tied(tie_weights: bool = True) -> Any:
    inputs = keras.Input((6,), dtype="int32")
    table = L.ReversibleEmbedding(11, 8, tie_weights=tie_weights, mask_zero=True, logit_soft_cap=2.0, name="table")
    x = L.Add()([table(inputs), L.Embedding(11, 8, name="other", embeddings_regularizer="l2")(inputs)])
    return keras.Model(inputs, table(L.Dense(8, "relu", name="hidden")(x), reverse=True))


def untied() -> Any:
    return tied(False)


def adapt(model: Any, **arguments: Any) -> Any:
    """Enables LoRA in every layer that supports it; both adapters are nonzero, so that they matter from step one."""
    for layer in model._flatten_layers(include_self=False):
        if hasattr(layer, "enable_lora"):
            layer.enable_lora(2, lora_alpha=3, b_initializer=keras.initializers.RandomNormal(0.0, 0.1), **arguments)
    return model


def data(model: Any) -> tuple[np.ndarray, np.ndarray]:
    generator = np.random.default_rng(0)
    shape = (ROWS, *model.input.shape[1:])
    x = generator.integers(0, 11, shape) if "int" in model.input.dtype else generator.normal(size=shape)
    return x.astype(model.input.dtype), generator.normal(size=(ROWS, *model.output.shape[1:])).astype("float32")


def trained(model: Any) -> list[np.ndarray]:
    """Returns the losses of two steps, then predictions, then weights."""
    x, y = data(model)
    losses = model.fit(x, y, batch_size=ROWS, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [np.asarray(each, "float64") for each in (losses, model.predict(x, verbose=0), *model.get_weights())]


def compiled(model: Any) -> Any:
    model.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse")
    return model


def in_plain(make: Callable[[], Any]) -> tuple[Any, list[np.ndarray], list[np.ndarray]]:
    """Returns the plain model, its weights before training, and the results of training."""
    keras.utils.set_random_seed(1)
    model = compiled(adapt(make()))
    return model, model.get_weights(), trained(model)


def in_shards(make: Callable[[], Any], axes: Mapping[str, int], *, after: bool = False, **how: Any) -> Any:
    """Returns the split model, with adapters added before or after the split."""
    keras.utils.set_random_seed(1)
    plain = make() if after else adapt(make())
    with mesh_strategy(axes).scope():
        split = keras_ext.parallelize(plain, **how)
        return compiled(adapt(split) if after else split)


def assert_close(wanted: Any, found: Any, tolerance: float = 1e-6) -> None:
    for one, other in zip(wanted, found, strict=True):
        np.testing.assert_allclose(other, one, rtol=tolerance, atol=tolerance)


TWO = {"tensor": 2}
BOTH = {"data": 2, "tensor": 2}


@pytest.mark.parametrize(
    ("make", "axes", "how"),
    [
        (sequences, BOTH, {"after": True}),
        pytest.param(sequences, TWO, {"sequence_parallel": True}, marks=pytest.mark.parity_all),
        (images, TWO, {}),
        (tied, TWO, {}),
        pytest.param(untied, TWO, {"after": True}, marks=pytest.mark.parity_all),
        pytest.param(sequences, {"tensor": 4}, {"plan": {".": "gathered"}}, marks=pytest.mark.parity_all),
        pytest.param(images, BOTH, {"after": True}, marks=pytest.mark.parity_all),
        pytest.param(tied, BOTH, {"after": True}, marks=pytest.mark.parity_all),
        pytest.param(untied, BOTH, {}, marks=pytest.mark.parity_all),
    ],
)
def test_parity(make: Any, axes: Mapping[str, int], how: Mapping[str, Any], tmp_path: pathlib.Path) -> None:
    plain, begun, wanted = in_plain(make)
    split = in_shards(make, axes, **how)
    for one, other in zip(begun, split.get_weights(), strict=True):
        np.testing.assert_array_equal(other, one)
    whole = layer_api.joined(split.weights)
    assert [weight.trainable for weight in whole] == [weight.trainable for weight in plain.weights]
    assert_close(wanted, trained(split))
    for weight, one, other in zip(plain.weights, begun, split.get_weights(), strict=True):
        if not weight.trainable:
            np.testing.assert_array_equal(other, one)
    assert len(layer_api.joined(split.trainable_weights)) == len(plain.trainable_weights)
    # Frozen weights have no slots.
    slots = [weight.shape for weight in layer_api.joined(split.optimizer.variables)]
    assert sorted(map(tuple, slots)) == sorted(tuple(weight.shape) for weight in plain.optimizer.variables)
    x, _ = data(plain)
    # Merged, as in Keras. No Keras opens a file of a compiled model with adapters inside an attention.
    split.save_weights(tmp_path / "split.weights.h5")
    plain.save_weights(tmp_path / "plain.weights.h5")
    other = make()
    other.load_weights(tmp_path / "split.weights.h5")
    assert_close([wanted[1]], [other.predict(x, verbose=0)])
    if make is not untied:
        # Keras cannot restore such a layer from its own config: it adds a weight to a layer that it has locked.
        split.save(tmp_path / "split.keras")
        opened = keras.saving.load_model(tmp_path / "split.keras", compile=False)
        assert {type(layer).__module__.partition(".")[0] for layer in opened._flatten_layers()} == {"keras"}
        assert_close([wanted[1]], [opened.predict(x, verbose=0)])
    split.load_weights(tmp_path / "plain.weights.h5")
    plain.load_weights(tmp_path / "plain.weights.h5")
    assert_close(plain.get_weights(), split.get_weights())
    assert_close([wanted[1]], [split.predict(x, verbose=0)])


LAYERS: Mapping[str, tuple[Any, Any, tuple[int, ...]]] = {
    "dense, columns": (L.Dense, keras_ext.ColumnParallelDense, (4, 8)),
    "dense, rows": (L.Dense, keras_ext.RowParallelDense, (4, 8)),
    "convolution, columns": (L.Conv2D, keras_ext.ColumnParallelConv2D, (4, 6, 6, 4)),
    "convolution, rows": (L.Conv2D, keras_ext.RowParallelConv2D, (4, 6, 6, 4)),
    "embedding": (L.Embedding, keras_ext.VocabParallelEmbedding, (4, 3)),
    "reversible embedding": (L.ReversibleEmbedding, keras_ext.VocabParallelReversibleEmbedding, (4, 3)),
}


@pytest.mark.parametrize("name", LAYERS)
@pytest.mark.parametrize("policy", ["float32", "mixed_bfloat16", "bfloat16"])
def test_asked_of_the_constructor(name: str, policy: str) -> None:
    plain_class, split_class, shape = LAYERS[name]
    arguments = (8, 2) if plain_class is L.Conv2D else (8,) if plain_class is L.Dense else (8, 6)
    x = np.random.default_rng(0).integers(0, 8, shape) if "embedding" in name else np.ones(shape, "float32")
    made = []
    for cls, axes in ((plain_class, {}), (split_class, TWO)):
        keras.utils.set_random_seed(1)
        with mesh_strategy(axes).scope():
            layer = cls(*arguments, lora_rank=2, lora_alpha=6, dtype=policy)
            layer(x)
            adapters = [weight for weight in layer_api.joined(layer.weights) if "lora" in weight.name]
            adapters[1].assign(np.full(adapters[1].shape, 0.5))
        made.append((layer, adapters, np.asarray(keras.ops.cast(layer(x), "float32"))))
    (plain, of_plain, wanted), (split, of_split, found) = made
    # Keras' dense layers and embeddings lose `lora_alpha`, and so do ours.
    assert (split.lora_rank, split.lora_alpha) == (plain.lora_rank, plain.lora_alpha)
    assert split.get_config()["lora_alpha"] == plain.get_config()["lora_alpha"]
    assert [weight.dtype for weight in of_split] == ["float32", "float32"]
    for one, other in zip(of_plain, of_split, strict=True):
        np.testing.assert_array_equal(np.asarray(other), np.asarray(one))
    # bfloat16 has eight bits of mantissa.
    np.testing.assert_allclose(found, wanted, rtol=1e-6 if policy == "float32" else 2e-2, atol=1e-6)
    merged = "embeddings" if "embedding" in name else "kernel"
    both = [np.asarray(keras.ops.cast(getattr(layer, merged), "float32")) for layer in (plain, split)]
    np.testing.assert_allclose(both[1], both[0], rtol=1e-6 if policy == "float32" else 2e-2)


def test_what_lies_where() -> None:
    with mesh_strategy(TWO).scope():
        up, down = keras_ext.ColumnParallelDense(8, gather_output=False), keras_ext.RowParallelDense(4)
        keras.Sequential([keras.Input((6,)), up, down])
        with pytest.raises(ValueError, match="isn't yet built"):
            keras_ext.RowParallelDense(4).enable_lora(2)
        for layer in (up, down):
            layer.enable_lora(2)
            with pytest.raises(ValueError, match="already enabled"):
                layer.enable_lora(2)
        constrained = keras_ext.RowParallelDense(4, kernel_constraint="non_neg")
        constrained.build((None, 8))
        with pytest.raises(ValueError, match="constraints"):
            constrained.enable_lora(2)
    shapes = {weight.name: tuple(weight.shape) for weight in [*up.weights, *down.weights]}
    assert {name: shape for name, shape in shapes.items() if "lora" in name} == {
        "lora_kernel_a": (6, 2),
        "lora_kernel_b_0": (2, 4),
        "lora_kernel_b_1": (2, 4),
        "lora_kernel_a_0": (4, 2),
        "lora_kernel_a_1": (4, 2),
        "lora_kernel_b": (2, 4),
    }
    assert not any(weight.trainable for layer in (up, down) for weight in layer._kernel.shards)
    assert not hasattr(keras_ext.ParallelMultiHeadAttention(2, 4), "enable_lora")


def test_a_frozen_kernel_is_in_no_gradient() -> None:
    with mesh_strategy(TWO).scope():
        model = keras.Sequential([keras.Input((6,)), keras_ext.ColumnParallelDense(8), keras_ext.RowParallelDense(4)])
        for layer in model.layers:
            layer.enable_lora(2)
        model.compile("sgd", "mse")
    assert all("lora" in weight.path or "bias" in weight.path for weight in model.trainable_weights)
    assert len(layer_api.joined(model.trainable_weights)) == 2 * 3
    assert len(layer_api.joined(model.non_trainable_weights)) == 2


def test_enabled_outside_of_the_scope() -> None:
    strategy = mesh_strategy(TWO)
    with strategy.scope():
        layer = keras_ext.ColumnParallelDense(8)
        model = compiled(keras.Sequential([keras.Input((6,)), layer]))
    layer.enable_lora(2)
    with pytest.raises(ValueError, match="Call `enable_lora` inside `with strategy"):
        model.fit(np.ones((4, 6)), np.ones((4, 8)), verbose=0)
    assert isinstance(strategy, strategies.MirroredStrategy)
