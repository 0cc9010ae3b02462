"""ParallelFeedForward: the results of a Sequential of two dense layers, from shards."""

from __future__ import annotations

import pathlib
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from keras_ext.tensor.split_tensor import SplitTensor
from tests.keras_ext.tensor.harness import MESHES, assert_parity, mesh_strategy
from tests.strategies.parity.harness import labels, vectors


def feed_forward(split: bool, **kwargs: Any) -> Any:
    if split:
        return keras_ext.ParallelFeedForward(8, 6, "relu", **kwargs)
    first = keras.initializers.get(kwargs.pop("kernel_initializer", "glorot_uniform"))
    both = {"kernel_regularizer": kwargs.get("kernel_regularizer"), "use_bias": kwargs.get("use_bias", True)}
    return keras.Sequential(
        [
            keras.layers.Dense(8, "relu", kernel_initializer=first, **both),
            keras.layers.Dense(6, kernel_initializer=first.clone(), **both),
        ]
    )


def classifier(split: bool, **kwargs: Any) -> keras.Model:
    x = keras.Input((6,))
    y = keras.layers.Dense(3, activation="softmax")(x + feed_forward(split, **kwargs)(x))
    model = keras.Model(x, y)
    optimizer = keras.optimizers.Adam(0.01, global_clipnorm=0.5)
    model.compile(optimizer, "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_parity(axes: Mapping[str, int]) -> None:
    assert_parity(classifier, vectors(), labels(), axes, predict=True)


def test_arguments() -> None:
    arguments = {"use_bias": False, "kernel_regularizer": "l2", "kernel_initializer": "he_normal"}
    assert_parity(lambda split: classifier(split, **arguments), vectors(), labels(), {"tensor": 2})


def test_is_a_sequential_in_files(tmp_path: pathlib.Path) -> None:
    with mesh_strategy({"tensor": 2}).scope():
        model = classifier(True, dropout=0.1)
    model.fit(vectors(), labels(), verbose=0)
    model.save(tmp_path / "split.keras")
    plain = keras.models.load_model(tmp_path / "split.keras")
    [block] = [layer for layer in plain.layers if isinstance(layer, keras.Sequential)]
    assert [type(layer) for layer in block.layers] == [keras.layers.Dense, keras.layers.Dense, keras.layers.Dropout]
    np.testing.assert_allclose(plain.predict(vectors(), verbose=0), model.predict(vectors(), verbose=0), atol=1e-6)


def test_is_made_of_its_config_again() -> None:
    layer = keras_ext.ParallelFeedForward(8, 6, "gelu", 0.1, kernel_initializer="he_normal", name="a name")
    again = keras_ext.ParallelFeedForward.from_config(layer.get_config())
    assert (again.name, len(again.layers), again.layers[0].units, again.layers[1].units) == ("a name", 3, 8, 6)
    assert again.layers[0].activation is keras.activations.gelu
    assert type(again.layers[1].kernel_initializer) is keras.initializers.HeNormal


def test_nothing_is_joined_between() -> None:
    with mesh_strategy({"tensor": 2}).scope():
        layer = keras_ext.ParallelFeedForward(8, 6)
        layer.build((None, 6))
        assert isinstance(layer.layers[0](vectors()), SplitTensor)


def test_refuses_hidden_units_that_do_not_divide() -> None:
    with mesh_strategy({"tensor": 4}).scope(), pytest.raises(ValueError, match="Received: 6"):
        keras_ext.ParallelFeedForward(6, 6).build((None, 6))
