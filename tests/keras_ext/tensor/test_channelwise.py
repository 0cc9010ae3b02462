"""Layers that take and return split tensors: the results of the plain layers, without gathering in between."""

from __future__ import annotations

import pathlib
from collections.abc import Callable, Iterator, Mapping
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
from keras_ext.tensor import channelwise
from keras_ext.tensor.conv import ColumnParallelConv2D, RowParallelConv2D
from keras_ext.tensor.split_tensor import SplitTensor
from tests.keras_ext.tensor.harness import MESHES, assert_parity, mesh_strategy
from tests.releases import known, marks_of
from tests.strategies.parity.harness import NUM_ROWS, features, labels, vectors

BATCH_NORMALIZATION = {False: keras.layers.BatchNormalization, True: channelwise.ChannelSplitBatchNormalization}
ACTIVATION = {False: keras.layers.Activation, True: channelwise.ShardwiseActivation}


def images() -> np.ndarray:
    return features(NUM_ROWS, 8, 8, 4, seed=1)


def between(split: bool, *layers: keras.Layer) -> list[keras.Layer]:
    """Returns the layers between a convolution with split outputs and one with split inputs."""
    # A bias would be subtracted with the mean: its gradient is only rounding, which Adam turns into full-size steps.
    if split:
        before, after = ColumnParallelConv2D(8, 3, use_bias=False, gather_output=False), RowParallelConv2D(4, 2)
    else:
        before, after = keras.layers.Conv2D(8, 3, use_bias=False), keras.layers.Conv2D(4, 2)
    return [before, *layers, after]


def classifier(*layers: keras.Layer, optimizer: Any = None, metrics: Any = ("accuracy",)) -> keras.Model:
    head = [keras.layers.GlobalAveragePooling2D(), keras.layers.Dense(3, activation="softmax")]
    model = keras.Sequential([keras.Input((8, 8, 4)), *layers, *head])
    made = keras.optimizers.Adam(0.01, global_clipnorm=0.5) if optimizer is None else optimizer
    model.compile(made, "sparse_categorical_crossentropy", metrics=list(metrics))
    return model


def normalized(split: bool, *, compiled: Any = None, **kwargs: Any) -> keras.Model:
    normalization = BATCH_NORMALIZATION[split](**{"synchronized": True, "momentum": 0.9} | kwargs)
    return classifier(*between(split, normalization, ACTIVATION[split]("relu")), **(compiled or {}))


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_batch_normalization_in_a_pair(axes: Mapping[str, int]) -> None:
    assert_parity(normalized, images(), labels(), axes, predict=True)


ARGUMENTS: Mapping[str, dict[str, Any]] = {
    "neither scale nor center": {"scale": False, "center": False, "epsilon": 0.01},
    "initializers": {
        "gamma_initializer": keras.initializers.RandomNormal(1.0, seed=1),
        "moving_mean_initializer": keras.initializers.RandomNormal(seed=2),
        "moving_variance_initializer": keras.initializers.RandomUniform(0.5, 1.5, seed=3),
    },
    "regularizers": {"gamma_regularizer": "l2", "beta_regularizer": keras.regularizers.L1(0.01)},
    "constraints": {"gamma_constraint": keras.constraints.UnitNorm(axis=0), "beta_constraint": "non_neg"},
    "renorm": {"renorm": True, "renorm_clipping": {"rmax": 3.0, "dmax": 5.0}, "renorm_momentum": 0.8},
    "frozen": {"trainable": False},
}


@pytest.mark.parametrize(
    "kwargs", [pytest.param(kwargs, id=name, marks=marks_of(*kwargs)) for name, kwargs in ARGUMENTS.items()]
)
def test_arguments_of_batch_normalization(kwargs: dict[str, Any]) -> None:
    def make(split: bool) -> keras.Model:
        return normalized(split, compiled={"optimizer": keras.optimizers.SGD(0.1)}, **kwargs)

    assert_parity(make, images(), labels(), {"tensor": 2})


def test_statistics_of_one_replica() -> None:
    assert_parity(lambda split: normalized(split, synchronized=False), images(), labels(), {"tensor": 2})


@pytest.mark.parametrize("axes", [{"tensor": 4}, {"data": 2, "tensor": 2}, {"data": 2}], ids=str)
def test_batch_normalization_of_a_whole_tensor(axes: Mapping[str, int]) -> None:
    def make(split: bool) -> keras.Model:
        normalization = BATCH_NORMALIZATION[split](synchronized=True, momentum=0.9)
        return classifier(keras.layers.Conv2D(8, 3, use_bias=False), normalization)

    assert_parity(make, images(), labels(), axes)


def test_masks() -> None:
    x = vectors().reshape(-1, 3, 2)
    x[::2, 1] = 0

    def make(split: bool) -> keras.Model:
        # Four channels on four shards: each shard has one channel, a dimension that Keras squeezes away.
        dense: Any = keras_ext.ColumnParallelDense if split else keras.layers.Dense
        kwargs = {"gather_output": False} if split else {}
        model = keras.Sequential(
            [
                keras.Input((3, 2)),
                keras.layers.Masking(),
                dense(4, use_bias=False, **kwargs),
                BATCH_NORMALIZATION[split](momentum=0.9),
                keras.layers.Dense(1),
            ]
        )
        model.compile("sgd", "mse")
        return model

    assert_parity(make, x, vectors()[:, :3, None], {"tensor": 4})


def test_mixed_precision() -> None:
    # Shards round partial sums to 8 bits of mantissa before adding them, where one device rounds the sum.
    # Accuracy is left out: rounding decides whether one row of 28 is a hit. Without Adam, which divides gradients near
    # zero, and their rounding errors, by themselves.
    assert_parity(
        lambda split: normalized(split, compiled={"metrics": (), "optimizer": keras.optimizers.SGD(0.1)}),
        images(),
        labels(),
        {"tensor": 2},
        dtype_policy="mixed_bfloat16",
        tolerance=3e-2,
    )


Layers = Callable[[Any], list[keras.Layer]]

#: Layers without weights, by the module that has them: Keras' own, or ours with its prefix.
OTHERS: Mapping[str, Layers] = {
    "activations": lambda get: [get("ReLU")(max_value=1.0), get("LeakyReLU")(0.2), get("Activation")("gelu")],
    "activation of all channels": lambda get: [get("Activation")("softmax")],
    "images": lambda get: [get("ZeroPadding2D")(1), get("MaxPooling2D")(3, 2), get("AveragePooling2D")(2, 1)],
    "global": lambda get: [get("GlobalAveragePooling2D")(keepdims=True), get("ZeroPadding2D")(1)],
    "nothing dropped": lambda get: [get("Dropout")(0.0)],
}


def getter(split: bool) -> Callable[[str], Any]:
    return lambda name: getattr(channelwise, f"Shardwise{name}") if split else getattr(keras.layers, name)


@pytest.mark.parametrize("layers", OTHERS.values(), ids=OTHERS)
def test_layers_without_weights(layers: Layers) -> None:
    def make(split: bool) -> keras.Model:
        return classifier(*between(split, *layers(getter(split))))

    assert_parity(make, images(), labels(), {"data": 2, "tensor": 2})


def ops_of(graph: Any) -> Iterator[tf.Operation]:
    yield from graph.get_operations()
    for name in graph._functions:
        yield from graph._functions[name].graph.get_operations()


class TestPieces:
    @pytest.mark.parametrize("joined", [False, True])
    def test_are_not_joined(self, joined: bool) -> None:
        strategy = mesh_strategy({"tensor": 2})
        with strategy.scope():
            get = getter(not joined)
            layers = [
                get("MaxPooling2D")(2),
                channelwise.ChannelSplitBatchNormalization(),
                get("ReLU")(),
                get("Dropout")(0.5),
                get("ZeroPadding2D")(1),
            ]
            model = classifier(*between(True, *layers))

        def step(x: tf.Tensor) -> Any:
            return strategy.run(lambda x: model(x, training=True), (x,))

        graph = tf.function(step).get_concrete_function(tf.TensorSpec((14, 8, 8, 4))).graph
        kinds = {op.type for op in ops_of(graph)}
        assert {"Conv2D", "MaxPool", "AssignVariableOp"} <= kinds
        assert ("ConcatV2" in kinds) == joined

    def test_lie_where_the_shards_are(self) -> None:
        strategy = mesh_strategy({"data": 2, "tensor": 2})
        with strategy.scope():
            layer = channelwise.ChannelSplitBatchNormalization()
            layer.build((None, 4))
        assert [[v.device[-5:] for v in shard.value.values] for shard in layer.moving_mean.shards] == [
            ["CPU:0", "CPU:2"],
            ["CPU:1", "CPU:3"],
        ]

    def test_gradients_for_a_whole_tensor_are_where_the_shards_are(self) -> None:
        strategy = mesh_strategy({"tensor": 2})
        with strategy.scope():
            layer = channelwise.ChannelSplitBatchNormalization()
            layer.build((None, 6))

        def gradients() -> Any:
            with tf.GradientTape() as tape:
                loss = keras.ops.sum(layer(tf.constant(vectors())) ** 2)
            return tape.gradient(loss, [shard.value for shard in layer.gamma.shards])

        found = strategy.run(gradients)
        assert [g.device[-5:] for g in found] == ["CPU:0", "CPU:1"]

    def test_along_another_dimension_are_joined(self) -> None:
        with mesh_strategy({"tensor": 2}).scope():
            x = pieces(images(), dim=1)
            y = channelwise.ShardwiseMaxPooling2D(2)(x)
            assert not isinstance(y, SplitTensor)
            np.testing.assert_array_equal(y, keras.layers.MaxPooling2D(2)(images()))
            assert isinstance(channelwise.ShardwiseReLU()(x), SplitTensor)
            layer = channelwise.ChannelSplitBatchNormalization()
            layer.build(x.shape)
            np.testing.assert_allclose(layer(x), keras.layers.BatchNormalization()(images()), atol=1e-6)

    def test_global_pooling_splits_what_is_left(self) -> None:
        with mesh_strategy({"tensor": 2}).scope():
            y = channelwise.ShardwiseGlobalAveragePooling2D()(pieces(images()))
            assert (y.shape, y.dim) == ((45, 4), 1)
            first = channelwise.ShardwiseGlobalAveragePooling2D(data_format="channels_first")
            y = first(pieces(images(), dim=1))
            assert (y.shape, y.dim) == ((45, 8), 1)
            np.testing.assert_allclose(y, images().mean((2, 3)), atol=1e-6)


def pieces(x: np.ndarray, dim: int = -1) -> SplitTensor:
    shards = channelwise.ChannelSplitBatchNormalization().place_shards()
    return SplitTensor(shards.scatter(tf.constant(x), dim), dim, shards)


class TestDropout:
    def dropped(self, x: Any, **kwargs: Any) -> np.ndarray:
        with mesh_strategy({"tensor": 2}).scope():
            y = channelwise.ShardwiseDropout(0.5, seed=3, **kwargs)(pieces(x) if x is not None else x, training=True)
        return np.asarray(y)

    def test_masks_differ(self) -> None:
        y = self.dropped(np.ones((64, 8), "float32"))
        first, second = np.split(y, 2, axis=-1)
        assert set(np.unique(y)) == {0, 2}
        assert 0.35 < np.mean(first == second) < 0.65
        np.testing.assert_array_equal(y, self.dropped(np.ones((64, 8), "float32")))
        plain = keras.layers.Dropout(0.5, seed=3)(np.ones((64, 4), "float32"), training=True)
        np.testing.assert_array_equal(first, plain)

    def test_masks_change_from_call_to_call(self) -> None:
        with mesh_strategy({"tensor": 2}).scope():
            layer, x = channelwise.ShardwiseDropout(0.5), pieces(np.ones((64, 8), "float32"))
            one, other = np.asarray(layer(x, training=True)), np.asarray(layer(x, training=True))
        assert 0.35 < np.mean(one == other) < 0.65

    def test_noise_shape(self) -> None:
        y = self.dropped(np.ones((64, 3, 8), "float32"), noise_shape=(None, 1, 8))
        np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))
        y = self.dropped(np.ones((64, 8), "float32"), noise_shape=(None, 1))
        np.testing.assert_array_equal(y, np.broadcast_to(y[:, :1], y.shape))

    def test_not_in_training(self) -> None:
        with mesh_strategy({"tensor": 2}).scope():
            y = channelwise.ShardwiseDropout(0.5)(pieces(vectors()))
        assert isinstance(y, SplitTensor)
        np.testing.assert_array_equal(y, vectors())


def test_a_file_is_one_of_plain_layers(tmp_path: pathlib.Path) -> None:
    path = tmp_path / "model.keras"
    get = getter(True)
    with mesh_strategy({"data": 2, "tensor": 2}).scope():
        layers = [get("Dropout")(0.5), get("Activation")("relu"), get("AveragePooling2D")(2)]
        model = classifier(*between(True, channelwise.ChannelSplitBatchNormalization(**known(renorm=True)), *layers))
        model.fit(images(), labels(), verbose=0)
        model.save(path)
    plain = keras.models.load_model(path)
    names = ("Conv2D", "BatchNormalization", "Dropout", "Activation", "AveragePooling2D", "Conv2D")
    assert [type(layer) for layer in plain.layers[: len(names)]] == [getattr(keras.layers, name) for name in names]
    for received, wanted in zip(plain.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_array_equal(received, wanted)
    np.testing.assert_allclose(plain.predict(images(), verbose=0), model.predict(images(), verbose=0), atol=1e-6)
    again = tmp_path / "plain.weights.h5"
    plain.save_weights(again)
    model.set_weights([np.zeros_like(weight) for weight in model.get_weights()])
    model.load_weights(again)
    for received, wanted in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(received, wanted)


def test_channels_that_do_not_divide() -> None:
    with mesh_strategy({"tensor": 4}).scope(), pytest.raises(ValueError, match=r"gamma of .*4 or 8.* Received: 6"):
        channelwise.ChannelSplitBatchNormalization()(tf.constant(vectors()))


def test_quantization_is_refused() -> None:
    layer = channelwise.ChannelSplitBatchNormalization()
    layer.build((None, 6))
    with pytest.raises(ValueError, match="int8"):
        layer.quantize("int8")


def test_config_is_the_plain_layers() -> None:
    layer = channelwise.ShardwiseDropout(0.3, seed=2, name="a name")
    assert layer.get_config() == keras.layers.Dropout(0.3, seed=2, name="a name").get_config()
    assert channelwise.ShardwiseDropout.from_config(layer.get_config()).rate == 0.3
