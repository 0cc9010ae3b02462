"""Layers inside other layers are found by their position in a copy."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np

from tests.keras_ext.cloning.copies import L, assert_like, each_copy
from tests.strategies.parity.harness import vectors

WORDS = np.array([["a", "b"], ["b", "c"], ["c", "q"]])


class Inner(keras.Layer):
    """A layer without get_config; its arguments are plain values. Not registered, like all classes here."""

    def __init__(self, units: int) -> None:
        super().__init__()
        self.words = L.StringLookup()
        self.words.adapt(["a", "b"])
        self.dense = L.Dense(units)
        self.frozen = L.Dense(units)

    def call(self, x: Any) -> Any:
        return self.frozen(self.dense(x)) + keras.ops.cast(keras.ops.max(self.words(WORDS)), x.dtype)


class Unnamed(keras.Layer):
    """Made from its config, it gets another name."""

    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__()
        self.units = units
        self.feed_forward = keras.Sequential([L.Dense(2 * units, activation=doubled), Inner(units)])
        self.norm = L.Normalization()

    def call(self, x: Any) -> Any:
        return self.norm(self.feed_forward(x))

    def get_config(self) -> dict[str, Any]:
        return {"units": self.units}


class Cell(keras.Layer):
    def __init__(self, units: int, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.units = self.state_size = units

    def call(self, x: Any, states: Any) -> Any:
        return x + states[0], [x + states[0]]

    def get_config(self) -> dict[str, Any]:
        return {**super().get_config(), "units": self.units}


def doubled(x: Any) -> Any:
    return 2 * x


@each_copy
def test_layers_inside_of_others_are_found_by_their_place(copied: Any) -> None:
    keras.utils.set_random_seed(1)
    x = keras.Input((6,))
    outer = Unnamed(6)
    h = keras.Sequential([outer, L.Dense(6, activation=lambda x: doubled(x))], name="inner")(x)
    h = L.RNN(Cell(6))(L.Reshape((2, 6))(L.Concatenate()([h, x])))
    model = keras.Model(x, L.Dense(4)(h))
    outer.norm.adapt(10 * vectors() + 3)
    words = outer.feed_forward.layers[1].words
    words.adapt(["c", "b", "q"])
    outer.feed_forward.layers[1].frozen.trainable = False
    copy = copied(model)
    assert_like(copy, model, vectors())
    assert [layer.name for layer in copy._flatten_layers()] == [layer.name for layer in model._flatten_layers()]
    assert [layer.trainable for layer in copy._flatten_layers()].count(False) == 1
    # Copies share no layer with the old model.
    words.adapt(["a", "b", "c", "q"])
    assert copy.get_layer("inner").layers[0].feed_forward.layers[1].words.vocabulary_size() == 4
