"""Names of classes in files: split layers have those of plain layers, all others those of Keras.

Names of layers before and after the first strategy are in `test_inventory.py`, which has a process without one.
"""

from __future__ import annotations

import pathlib
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from strategies import layer_api


def test_python_prints_its_own_name() -> None:
    assert keras_ext.ColumnParallelDense.__qualname__ == "ColumnParallelDense"
    assert repr(keras_ext.ColumnParallelDense(2, name="up")) == "<ColumnParallelDense name=up, built=False>"


class ColumnParallelDense(keras.layers.Dense):
    """A layer of the user's with the name of one of ours."""


class Holder(keras.Model):
    """Keeps layers in a list: in a file each has a folder named after its class."""

    def __init__(self, dense: Any) -> None:
        super().__init__()
        self.parts = [dense(3), dense(2)]

    def call(self, x: Any) -> Any:
        return self.parts[1](self.parts[0](x))


def test_folders_in_files(tmp_path: pathlib.Path) -> None:
    x = np.ones((2, 4), "float32")
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2}).scope():
        split = Holder(lambda units: keras_ext.ColumnParallelDense(2 * units))
        split(x)
    split.save_weights(tmp_path / "split.weights.h5")
    plain = Holder(lambda units: keras.layers.Dense(2 * units))
    plain(x)
    plain.load_weights(tmp_path / "split.weights.h5")
    for mine, theirs in zip(split.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)


def test_a_users_class_of_the_same_name_keeps_it_in_files(tmp_path: pathlib.Path) -> None:
    strategies.MirroredStrategy(["CPU:0"])
    own = Holder(ColumnParallelDense)
    own(np.ones((2, 4), "float32"))
    own.save_weights(tmp_path / "own.weights.h5")
    plain = Holder(keras.layers.Dense)
    plain(np.ones((2, 4), "float32"))
    # Without this package it is the same: Keras does not find the folders of another class.
    with pytest.raises(ValueError, match="could not be loaded"):
        plain.load_weights(tmp_path / "own.weights.h5")
    assert keras.saving.serialize_keras_object(own.parts[0])["class_name"] == "ColumnParallelDense"


def test_a_subclass_is_itself() -> None:
    class Mine(keras_ext.RowParallelDense):
        pass

    assert Mine.__name__ == "Mine"
    assert keras.saving.serialize_keras_object(Mine(2))["class_name"] == "Mine"


def test_models_are_functional() -> None:
    @layer_api.saved_as(keras.Model)
    class Marked(keras.Model):
        @classmethod
        def plain_config(cls, config: dict[str, Any]) -> dict[str, Any]:
            return config

    inputs = keras.Input((2,))
    config = keras.saving.serialize_keras_object(Marked(inputs, keras.layers.Dense(1)(inputs)))
    assert (config["module"], config["class_name"]) == ("keras.src.models.functional", "Functional")
