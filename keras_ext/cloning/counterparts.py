"""Replaces the layers and weights that functions and objects hold by those of a copy of the model."""

from __future__ import annotations

from typing import Any

import keras

from keras_ext.cloning.pairing import pairs
from keras_ext.cloning.structure import Attributes
from strategies import layer_api

_OF_MODELS = (keras.Layer, keras.Variable, keras.random.SeedGenerator, keras.metrics.Metric, keras.Optimizer)


class Counterparts(Attributes):
    """Copies functions, methods and objects that use a model, so that they use its finished copy.

    Layers, weights and similar objects that belong to others, such as a teacher model, are kept.

    Args:
        old: the model.
        new: its copy.
    """

    def __init__(self, old: Any, new: Any) -> None:
        super().__init__(self.get, {}, (), ())
        for one, other in pairs(old, new):
            self._made[id(one)] = (one, other)
        weights = layer_api.joined(old.weights, only_split=True), layer_api.joined(new.weights, only_split=True)
        for one, other in zip(*weights, strict=True):
            self._made[id(one)] = (one, other)

    def get(self, value: Any) -> Any:
        """Returns the counterpart of a value; the same object if nothing in it belongs to the model.

        Raises:
            CannotCopyError: the value is, or holds, a function compiled by TensorFlow that uses the model.
        """
        if isinstance(value, _OF_MODELS):
            return self._made.get(id(value), (value, value))[1]
        return super().get(value)

    def variables_of(self, variables: list[Any]) -> list[Any]:
        """Returns the copy's variables for some of the model's variables; for a split weight, all of its shards."""
        made = [self.get(weight) for weight in layer_api.joined(variables, only_split=True)]
        return [each for one in made for each in (one.shards if isinstance(one, layer_api.SplitWeight) else [one])]
