"""ColumnParallelConv2D and RowParallelConv2D: the results of keras.layers.Conv2D, from shards."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from keras_ext.tensor.conv import ColumnParallelConv2D, RowParallelConv2D
from keras_ext.tensor.split_tensor import SplitTensor
from tests.keras_ext.tensor.harness import MESHES, assert_parity, mesh_strategy
from tests.strategies.parity.harness import NUM_ROWS, features, labels


def images() -> np.ndarray:
    return features(NUM_ROWS, 8, 8, 4, seed=1)


def tensor() -> tf.Tensor:
    return tf.constant(images())


def pair(split: bool, *, gather: bool = False, column: Any = None, row: Any = None) -> list[keras.Layer]:
    for_column = {"filters": 8, "kernel_size": 3, "activation": "relu"} | (column or {})
    for_row = {"filters": 4, "kernel_size": (3, 2), "activation": "tanh"} | (row or {})
    if not split:
        return [keras.layers.Conv2D(**for_column), keras.layers.Conv2D(**for_row)]
    return [ColumnParallelConv2D(**for_column, gather_output=gather), RowParallelConv2D(**for_row)]


def classifier(split: bool, optimizer: Any = None, **kwargs: Any) -> keras.Model:
    model = keras.Sequential(
        [
            keras.Input((8, 8, 4)),
            *pair(split, **kwargs),
            keras.layers.GlobalAveragePooling2D(),
            keras.layers.Dense(3, activation="softmax"),
        ]
    )
    made = keras.optimizers.Adam(0.01, global_clipnorm=0.5) if optimizer is None else optimizer
    model.compile(made, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
class TestParity:
    def test_with_adam_and_global_clipnorm(self, axes: Mapping[str, int]) -> None:
        assert_parity(classifier, images(), labels(), axes, predict=True)

    def test_gathered_between(self, axes: Mapping[str, int]) -> None:
        assert_parity(lambda split: classifier(split, gather=True), images(), labels(), axes)


NO_BIAS: dict[str, Any] = {"use_bias": False}
ARGUMENTS: Mapping[str, tuple[dict[str, Any], dict[str, Any]]] = {
    "strides": ({"strides": 2}, {"strides": (1, 2)}),
    "same": ({"padding": "same", "strides": (2, 1)}, {"padding": "same"}),
    "dilation": ({"dilation_rate": 2}, {"dilation_rate": (1, 2)}),
    "no bias": (NO_BIAS, NO_BIAS),
    "initializers": (
        {"kernel_initializer": keras.initializers.HeNormal(seed=3), "bias_initializer": "ones"},
        {"kernel_initializer": keras.initializers.Orthogonal(seed=4), "bias_initializer": "ones"},
    ),
    "regularizers": (
        {"kernel_regularizer": "l2", "bias_regularizer": "l1"},
        {"kernel_regularizer": keras.regularizers.L1L2(0.01, 0.01), "bias_regularizer": "l2"},
    ),
    "constraints by norm": (
        {"kernel_constraint": keras.constraints.MaxNorm(0.9, axis=[0, 1, 2]), "bias_constraint": "non_neg"},
        {"kernel_constraint": keras.constraints.MinMaxNorm(0.3, 0.8, axis=[0, 1, 2])},
    ),
    "constraints by norms of others": (
        {"kernel_constraint": keras.constraints.UnitNorm(axis=[2, 3])},
        {"kernel_constraint": keras.constraints.UnitNorm(axis=3)},
    ),
    "activity": ({"activity_regularizer": "l2"}, {"activity_regularizer": "l2"}),
}


@pytest.mark.parametrize(("column", "row"), ARGUMENTS.values(), ids=ARGUMENTS)
def test_arguments_of_the_plain_layer(column: dict[str, Any], row: dict[str, Any]) -> None:
    def make(split: bool) -> keras.Model:
        return classifier(split, keras.optimizers.SGD(0.1), column=column, row=row)

    assert_parity(make, images(), labels(), {"tensor": 2})


@pytest.mark.parametrize("groups", [2, 4])
def test_groups(groups: int) -> None:
    assert_parity(lambda split: classifier(split, column={"groups": groups}), images(), labels(), {"tensor": 2})


def test_activation_of_all_channels() -> None:
    assert_parity(
        lambda split: classifier(split, gather=True, column={"activation": "softmax"}),
        images(),
        labels(),
        {"tensor": 2},
    )


def test_mixed_precision() -> None:
    # Shards round partial sums to 8 bits of mantissa before adding them, where one device rounds the sum.
    assert_parity(classifier, images(), labels(), {"tensor": 2}, dtype_policy="mixed_bfloat16", tolerance=3e-2)


def test_gradients_are_those_of_conv2d_and_where_the_shards_are() -> None:
    def built(split: bool) -> list[keras.Layer]:
        keras.utils.set_random_seed(5)
        column, row = pair(split)
        column.build((None, 8, 8, 4))
        row.build((None, 6, 6, 8))
        return [column, row]

    def gradients(layers: list[keras.Layer]) -> Any:
        x = tensor()
        with tf.GradientTape() as tape:
            tape.watch(x)
            y = layers[1](layers[0](x))
            loss = keras.ops.mean(y * y)
        return tape.gradient(loss, [x, *(v.value for layer in layers for v in layer.trainable_variables)])

    of_x, *of_weights = gradients(built(False))
    strategy = mesh_strategy({"tensor": 2})
    with strategy.scope():
        split = built(True)
    found_of_x, *found = strategy.run(gradients, (split,))
    np.testing.assert_allclose(found_of_x, of_x, atol=1e-6)
    np.testing.assert_allclose(np.concatenate(found[:2], 3), of_weights[0], atol=1e-6)
    np.testing.assert_allclose(np.concatenate(found[2:4], 0), of_weights[1], atol=1e-6)
    np.testing.assert_allclose(np.concatenate(found[4:6], 2), of_weights[2], atol=1e-6)
    np.testing.assert_allclose(found[6], of_weights[3], atol=1e-6)
    assert [g.device[-5:] for g in found] == ["CPU:0", "CPU:1"] * 3 + ["CPU:0"]


class TestPieces:
    def test_a_pair_passes_pieces_on(self) -> None:
        with mesh_strategy({"tensor": 4}).scope():
            y = ColumnParallelConv2D(8, 3, gather_output=False)(tensor())
        assert isinstance(y, SplitTensor)
        assert (y.shape, y.dim) == ((45, 6, 6, 8), 3)
        assert [piece.shape[-1] for piece in y.pieces] == [2] * 4

    def test_a_plain_layer_gets_the_whole_tensor(self) -> None:
        with mesh_strategy({"tensor": 2}).scope():
            layers = [keras.Input((8, 8, 4)), pair(True)[0], keras.layers.Softmax()]
            np.testing.assert_allclose(np.sum(keras.Sequential(layers)(tensor()), axis=-1), 1, atol=1e-6)

    def test_refuses_what_it_was_not_promised(self) -> None:
        with mesh_strategy({"tensor": 2}).scope():
            with pytest.raises(ValueError, match="gather_output=False"):
                RowParallelConv2D(4, 3, input_is_parallel=True)(tensor())
            pieces = ColumnParallelConv2D(8, 3, gather_output=False)(tensor())
            layer = RowParallelConv2D(4, 3, input_is_parallel=False)
            layer.build(pieces.shape)
            with pytest.raises(ValueError, match="gather_output=True"):
                layer(pieces)


def test_channels_first(monkeypatch: pytest.MonkeyPatch) -> None:
    # TensorFlow supports such convolutions only on GPUs.
    def on_cpu(layer: Any, x: Any, kernel: Any) -> Any:
        y = keras.ops.conv(keras.ops.transpose(x, (0, 2, 3, 1)), kernel, data_format="channels_last")
        return keras.ops.transpose(y, (0, 3, 1, 2))

    monkeypatch.setattr(keras.layers.Conv2D, "convolution_op", on_cpu)
    first = {"data_format": "channels_first"}

    def make(split: bool) -> keras.Model:
        layers = pair(split, column=first, row=first)
        model = keras.Sequential([keras.Input((4, 8, 8)), *layers, keras.layers.GlobalAveragePooling2D(**first)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
        return model

    x = np.moveaxis(images(), -1, 1)
    assert_parity(make, x, x[:, :, 0, 0], {"tensor": 2})


def test_a_file_is_one_of_plain_layers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.keras"
    with mesh_strategy({"tensor": 2}).scope():
        model = classifier(True, column={"groups": 2, "strides": 2})
        model.fit(images(), labels(), verbose=0)
        model.save(path)
    plain = keras.models.load_model(path)
    assert [type(layer) for layer in plain.layers[:2]] == [keras.layers.Conv2D] * 2
    for received, wanted in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(received, wanted)
    np.testing.assert_allclose(plain.predict(images(), verbose=0), model.predict(images(), verbose=0), atol=1e-6)


class TestRefusals:
    def test_sizes_that_do_not_divide(self) -> None:
        with mesh_strategy({"tensor": 4}).scope():
            with pytest.raises(ValueError, match=r"kernel of .*8 or 12.* Received: 10"):
                ColumnParallelConv2D(10, 3)(tensor())
            with pytest.raises(ValueError, match="Received: 3"):
                RowParallelConv2D(4, 3)(tensor()[..., :3])

    def test_groups(self) -> None:
        with mesh_strategy({"tensor": 4}).scope():
            with pytest.raises(ValueError, match=r"4 shards .* Received: groups=2"):
                ColumnParallelConv2D(8, 3, groups=2)(tensor())
            with pytest.raises(ValueError, match="Received: groups=4"):
                RowParallelConv2D(8, 3, groups=4)(tensor())
        with pytest.raises(ValueError, match="Received: 4 channels"):
            ColumnParallelConv2D(9, 3, groups=3)(tensor())

    def test_activations_that_need_all_channels(self) -> None:
        with pytest.raises(ValueError, match="softmax"):
            ColumnParallelConv2D(8, 3, activation="softmax", gather_output=False)

    @pytest.mark.parametrize("layer", [ColumnParallelConv2D, RowParallelConv2D])
    def test_quantization(self, layer: Any) -> None:
        with pytest.raises(ValueError, match="quantization"):
            layer(8, 3, dtype="int8_from_float32")
        made = layer(8, 3)
        made.build((None, 8, 8, 4))
        with pytest.raises(ValueError, match="int8"):
            made.quantize("int8")


class TestWithoutAMesh:
    @pytest.mark.parametrize("layer", [ColumnParallelConv2D, RowParallelConv2D])
    def test_is_a_conv2d(self, layer: Any) -> None:
        keras.utils.set_random_seed(1)
        plain = keras.layers.Conv2D(8, 3, 2, "same", activation="relu", groups=2)(tensor())
        keras.utils.set_random_seed(1)
        np.testing.assert_array_equal(layer(8, 3, 2, "same", activation="relu", groups=2)(tensor()), plain)

    def test_knows_its_own_arguments(self) -> None:
        layer = ColumnParallelConv2D(8, 3, 2, gather_output=False, name="a name")
        again = ColumnParallelConv2D.from_config(layer.get_config())
        assert (again.name, again.filters, again.strides, again.gather_output) == ("a name", 8, (2, 2), False)
        assert RowParallelConv2D.from_config(
            RowParallelConv2D(4, 3, input_is_parallel=True).get_config()
        ).input_is_parallel
