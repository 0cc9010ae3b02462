"""The layers of one stage, as one layer."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_ext.cloning import Copies, copy_state, input_of
from strategies import layer_api


@layer_api.saved_as(keras.Sequential)
class PipelineStage(keras.Sequential):
    """Layers, one after the other, that lie on the device of one stage of a pipeline.

    Their variables, the states of random draws included, are created on the device that the mesh axis "pipe" has for
    the stage, and what optimizers keep of them is there, too. So is what they compute; in a
    :class:`~keras_ext.PipelineModel`, which is made of such stages, so are their gradients.

    In files it is a ``keras.Sequential``.

    Args:
        layers: a list of layers, or a Sequential or Functional model. What has variables already is made again where it
            belongs, with their values.
        stage: from 0; stages beyond the size of "pipe" begin again at its first device.
        name: of the layer.

    Input shape:
        That of the first layer.

    Output shape:
        That of the last layer.

    Example:

        first = [keras.layers.Dense(8, "relu"), keras.layers.Dense(8, "relu")]
        with strategies.MirroredStrategy(mesh={"data": -1, "pipe": 2}).scope():
            stages = [keras_ext.PipelineStage(first, 0), keras_ext.PipelineStage([keras.layers.Dense(3)], 1)]
            model = keras_ext.PipelineModel([keras.Input((4,)), *stages], num_microbatches=4)

    Raises:
        ValueError: `stage` is not a number from 0, or there are no layers.

    Source: Huang et al., arXiv:1811.06965.
    """

    def __init__(self, layers: Any, stage: int = 0, name: str | None = None, **kwargs: Any) -> None:
        if isinstance(stage, bool) or not isinstance(stage, int) or stage < 0:
            raise ValueError(f"stage is the number of a stage, from 0. Received: stage={stage!r}.")
        given = _listed(layers)
        if not given:
            raise ValueError(f"A stage has one layer at least. Received: layers={layers!r}.")
        self._parts = layer_api.replica_parts()
        self._position = stage % self._parts.mesh.axis_size("pipe")
        along = self._parts.along("pipe")
        home = self._parts.home({**self._parts.here, "pipe": frozenset([self._position])})
        self._part = along[self._position] if home is None else home
        self.stage = stage
        with self._parts.at(pipe=self._position):
            with layer_api.global_state_kept():
                copies = Copies()
                here = [_made_here(layer, copies) for layer in given]
            super().__init__(here, name=name, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables that are not there yet."""
        with self._parts.at(pipe=self._position):
            super().build(input_shape)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """Computes the layers on the stage's device."""
        with self._parts.on(self._part):
            return super().call(inputs, training=training, mask=mask, **kwargs)

    def made_of(self, layers: list[Any]) -> PipelineStage:
        """Returns a stage of other layers, for a copy of the model that this one is in."""
        return type(self)([*input_of(self), *layers], self.stage, name=self.name)

    @classmethod
    def plain_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """The config of the Sequential model, for files."""
        return {name: value for name, value in config.items() if name != "stage"}

    def get_config(self) -> dict[str, Any]:
        """That of the Sequential model, and the stage."""
        return {**super().get_config(), "stage": self.stage}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> PipelineStage:
        """Makes the stage again, built if it was."""
        made = keras.Sequential.from_config(cls.plain_config(config), custom_objects)
        return cls(made, config["stage"], name=config["name"])


def _listed(layers: Any) -> list[Any]:
    if isinstance(layers, keras.Sequential):
        return [*input_of(layers), *layers.layers]
    if isinstance(layers, keras.Layer):
        return [layers]
    return list(layers) if isinstance(layers, Sequence) else []


def _made_here(layer: Any, copies: Copies) -> Any:
    """A layer as it is, if it has no variables yet; else one like it that is made anew."""
    if not isinstance(layer, keras.Layer) or isinstance(layer, keras.layers.InputLayer) or not layer.variables:
        return layer
    made = copies.built(layer)
    if layer.built:
        copy_state(layer, made)
    return made
