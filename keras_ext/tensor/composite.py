"""Layers made of several layers, which are models of plain layers in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras


class Composite:
    """Mix-in before the class of model that the layer has in files.

    The layer's config holds the arguments of its constructor, besides the model's config.
    """

    # Set by Keras.
    name: str

    def note_arguments(self, **arguments: Any) -> None:
        """Stores the constructor's arguments: numbers, names, and Keras' objects, such as initializers."""
        self._own = {name: keras.saving.serialize_keras_object(value) for name, value in arguments.items()}

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        """Returns no mask: the inner layers set that of the output. Keras warns of models without this method."""
        return

    def model_config(self) -> dict[str, Any]:
        """Returns the config of the model."""
        raise NotImplementedError

    @classmethod
    def plain_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """Returns the config of the model, for files."""
        return dict(config["model"])

    def get_config(self) -> dict[str, Any]:
        """Returns this layer's arguments, and the config of the model."""
        return {**self._own, "name": self.name, "model": self.model_config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
        """Makes the layer from its arguments."""
        own = {name: value for name, value in config.items() if name != "model"}
        return cls(
            **{name: keras.saving.deserialize_keras_object(value, custom_objects) for name, value in own.items()}
        )
