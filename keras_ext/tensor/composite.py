"""Layers made of several, which are models of plain layers in files."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras


class Composite:
    """Mix-in before the class of model that the layer is in files.

    The layer's config holds the arguments that it was made with, beside the model's config.
    """

    # Of Keras.
    name: str

    def note_arguments(self, **arguments: Any) -> None:
        """Remembers what the layer is made with: numbers, names, and Keras' objects, such as initializers."""
        self._own = {name: keras.saving.serialize_keras_object(value) for name, value in arguments.items()}

    def compute_mask(self, inputs: Any, previous_mask: Any) -> None:
        """None beside the mask that the layers inside give the output. Keras warns of models that do not have this."""
        return

    def model_config(self) -> dict[str, Any]:
        """The config of the model."""
        raise NotImplementedError

    @classmethod
    def plain_config(cls, config: Mapping[str, Any]) -> dict[str, Any]:
        """The config of the model, for files."""
        return dict(config["model"])

    def get_config(self) -> dict[str, Any]:
        """This layer's arguments, and the config of the model."""
        return {**self._own, "name": self.name, "model": self.model_config()}

    @classmethod
    def from_config(cls, config: Mapping[str, Any], custom_objects: Any = None) -> Any:
        """Makes the layer of its arguments."""
        own = {name: value for name, value in config.items() if name != "model"}
        return cls(
            **{name: keras.saving.deserialize_keras_object(value, custom_objects) for name, value in own.items()}
        )
