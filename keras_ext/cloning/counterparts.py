"""Layers and weights that functions and objects hold, replaced by those of a copy of the model."""

from __future__ import annotations

from typing import Any

import keras

from keras_ext.cloning.pairing import pairs
from keras_ext.cloning.structure import Attributes
from strategies import layer_api

_OF_MODELS = (keras.Layer, keras.Variable, keras.random.SeedGenerator, keras.metrics.Metric, keras.Optimizer)


class Counterparts(Attributes):
    """Gives functions, methods and objects that work with a model to its copy, which is complete.

    Layers, weights and the like that are not the model's, such as a teacher's, stay what they are.

    Args:
        old: the model.
        new: its copy.
    """

    def __init__(self, old: Any, new: Any) -> None:
        super().__init__(self.of, {}, ())
        for one, other in pairs(old, new):
            self._made[id(one)] = (one, other)
        weights = layer_api.joined(old.weights, only_split=True), layer_api.joined(new.weights, only_split=True)
        for one, other in zip(*weights, strict=True):
            self._made[id(one)] = (one, other)

    def of(self, value: Any) -> Any:
        """Returns the counterpart of a value; the same object if nothing in it belongs to the model.

        Raises:
            CannotCopyError: a function compiled by TensorFlow that works with the model.
        """
        if isinstance(value, _OF_MODELS):
            return self._made.get(id(value), (value, value))[1]
        return super().of(value)

    def variables_of(self, variables: list[Any]) -> list[Any]:
        """Returns the variables that the copy has for some of the model's: of a weight in shards, all of them."""
        made = [self.of(weight) for weight in layer_api.joined(variables, only_split=True)]
        return [each for one in made for each in (one.shards if isinstance(one, layer_api.SplitWeight) else [one])]
