"""A layer that contains the layers of one pipeline stage."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import keras

from keras_ext.cloning import Copies, copy_state, input_of
from strategies import layer_api


@layer_api.saved_as(keras.Sequential)
class PipelineStage(keras.Sequential):
    """A sequence of layers on the device of one pipeline stage.

    Their variables, including the state of random generators, are created on the device that the mesh axis "pipe" has
    for the stage; optimizer slots and outputs are on the same device. In a :class:`~keras_ext.PipelineModel` of such
    stages, so are the gradients.

    Saved files contain a ``keras.Sequential``.

    Args:
        layers: a list of layers, or a Sequential or Functional model. A layer that already has variables is replaced by
            a copy on the stage's device, with the same values.
        stage: the number of the stage, from 0.
        position: the position of the stage's device on the axis "pipe", from 0. If left out, stage k is at position
            ``k % size``. For the schedules ``"zb_v"`` and ``"v_half"``, the first `size` stages are at
            ``size - 1 - k``, and the others at ``k - size``.
        name: the name of the layer.

    Input shape:
        The input shape of the first layer.

    Output shape:
        The output shape of the last layer.

    Example:

        first = [keras.layers.Dense(8, "relu"), keras.layers.Dense(8, "relu")]
        with strategies.MirroredStrategy(mesh={"data": -1, "pipe": 2}).scope():
            stages = [keras_ext.PipelineStage(first, 0), keras_ext.PipelineStage([keras.layers.Dense(3)], 1)]
            model = keras_ext.PipelineModel([keras.Input((4,)), *stages], num_microbatches=4)

    Raises:
        ValueError: `stage` is not a number from 0, the axis has no such `position`, or there are no layers.

    Source: Huang et al., arXiv:1811.06965.
    """

    def __init__(
        self, layers: Any, stage: int = 0, name: str | None = None, *, position: int | None = None, **kwargs: Any
    ) -> None:
        if isinstance(stage, bool) or not isinstance(stage, int) or stage < 0:
            raise ValueError(f"stage is the number of a stage, from 0. Received: stage={stage!r}.")
        given = _listed(layers)
        if not given:
            raise ValueError(f"A stage has one layer at least. Received: layers={layers!r}.")
        self._parts = layer_api.replica_parts()
        along = self._parts.along("pipe")
        if position is not None and position not in range(len(along)):
            raise ValueError(
                f"position is a number from 0 to {len(along) - 1}: the axis 'pipe' has {len(along)} device(s). "
                f"Received: position={position!r}."
            )
        self.stage = stage
        #: The position of the stage's device on the axis "pipe".
        self.position = stage % len(along) if position is None else position
        part = self._parts.local_part({**self._parts.coordinates, "pipe": frozenset([self.position])})
        self._part = along[self.position] if part is None else part
        with self._parts.at(pipe=self.position):
            with layer_api.global_state_kept():
                copies = Copies()
                placed = [_local_layer(layer, copies) for layer in given]
            super().__init__(placed, name=name, **kwargs)

    def build(self, input_shape: Any = None) -> None:
        """Creates the variables that do not exist yet."""
        with self._parts.at(pipe=self.position):
            super().build(input_shape)

    def call(self, inputs: Any, training: bool | None = None, mask: Any = None, **kwargs: Any) -> Any:
        """Computes the layers on the stage's device."""
        with self._parts.on(self._part):
            return super().call(inputs, training=training, mask=mask, **kwargs)

    def with_layers(self, layers: list[Any]) -> PipelineStage:
        """Returns a stage with the same number and name but other layers, for a copy of the model that contains it."""
        return type(self)([*input_of(self), *layers], self.stage, self.name, position=self.position)

    @classmethod
    def plain_config(cls, config: dict[str, Any]) -> dict[str, Any]:
        """Returns the config of the Sequential model, for saved files."""
        return {name: value for name, value in config.items() if name not in ("stage", "position")}

    def get_config(self) -> dict[str, Any]:
        """Returns the config of the Sequential model, the stage and its position."""
        return {**super().get_config(), "stage": self.stage, "position": self.position}

    @classmethod
    def from_config(cls, config: dict[str, Any], custom_objects: Any = None) -> PipelineStage:
        """Creates a stage from its config, built if the saved one was."""
        made = keras.Sequential.from_config(cls.plain_config(config), custom_objects)
        return cls(made, config["stage"], config["name"], position=config["position"])


def _listed(layers: Any) -> list[Any]:
    if isinstance(layers, keras.Sequential):
        return [*input_of(layers), *layers.layers]
    if isinstance(layers, keras.Layer):
        return [layers]
    return list(layers) if isinstance(layers, Sequence) else []


def _local_layer(layer: Any, copies: Copies) -> Any:
    """Returns the layer itself if it has no variables yet, else a copy with the same state."""
    if not isinstance(layer, keras.Layer) or isinstance(layer, keras.layers.InputLayer) or not layer.variables:
        return layer
    made = copies.built(layer)
    if layer.built:
        copy_state(layer, made)
    return made
