"""The forward passes of a pipeline model outside of its training step. Tested with the model."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Sequence
from typing import Any

import keras

from keras_ext.pipeline.flow import across, masks_across, refused_gradients, weighed_sums
from keras_ext.pipeline.microbatch import Microbatches
from keras_ext.pipeline.placed_stages import PlacedStages
from keras_ext.pipeline.stage import penalties_of
from keras_ext.tensor_metadata import MASK, metadata_of, set_metadata
from strategies import layer_api

#: Outputs of the model, and the losses that layers add.
_Made = tuple[list[Any], list[Any]]


class ForwardPasses:
    """Computes a model's outputs through its stages, in several ways.

    Args:
        placed: the stages.
        inputs: the model's inputs, Keras' tensors.
    """

    def __init__(self, placed: PlacedStages, inputs: Sequence[Any]) -> None:
        self._placed = placed
        self._parts = placed.parts
        self._inputs = inputs
        # Replicas run in threads of their own.
        self._local = threading.local()

    def computed(self, flat: Sequence[Any], training: bool | None) -> list[Any]:
        """Returns the outputs for a whole batch."""
        values = dict(zip(map(id, self._inputs), flat, strict=True))
        for stage, part in zip(self._placed.stages, self._placed.devices, strict=True):
            # A stage of another process has no part here: it is traced only for its shapes.
            with contextlib.nullcontext() if part is None else self._parts.on(part):
                made = stage.compute([values[id(tensor)] for tensor in stage.inputs], training)
            values.update(zip(map(id, stage.outputs), made, strict=True))
        return [values[id(tensor)] for tensor in self._placed.outputs]

    def computed_with_losses(self, flat: Sequence[Any]) -> _Made:
        """Returns the outputs, and the losses that layers add, including penalties of weights."""
        with keras.StatelessScope(collect_losses=True):
            outputs = self.computed(flat, training=False)
            added = self._take_added_losses()
            penalties = [each for penalties in penalties_of(self._placed.stages) for each in penalties()]
        return outputs, [*added, *penalties]

    def flowing(self, flat: Sequence[Any], num_microbatches: int) -> _Made:
        """Returns the outputs and added losses, computed in micro-batches, so that devices compute at the same time."""
        cut_up = Microbatches.from_batch(flat, num_microbatches)
        made, added = [], []
        shares = [layer_api.as_constant(weight) for weight in cut_up.weights()]
        for i, piece in enumerate(cut_up.split(list(flat))):
            made.append(self.computed(piece, training=False))
            added.append([layer_api.as_mean(loss, shares[i]) for loss in self._take_added_losses()])
        return cut_up.join(made), weighed_sums(added, shares)

    def across(
        self, flat: Sequence[Any], num_microbatches: int, training: bool | None, outputs_to_all: bool = True
    ) -> _Made:
        """Returns the outputs and added losses of stages in several processes, all of which call this.

        Args:
            flat: the batch.
            num_microbatches: the number of micro-batches; ignored if `training` is true, which computes the whole
                batch.
            training: the `training` argument of layers.
            outputs_to_all: True to send the outputs to all processes, False to send them to that of the last stage.
        """
        functions = self._local.__dict__.setdefault("functions", {})
        key = training, outputs_to_all
        if key not in functions:
            number = 1 if training else num_microbatches
            functions[key] = layer_api.in_graph(
                lambda *flat: across(self._placed, self._inputs, flat, number, training, outputs_to_all)
            )
        outputs, masks, added = functions[key](*flat)
        set_metadata(outputs, MASK, masks)
        return outputs, added

    def called_across(
        self, flat: Sequence[Any], num_microbatches: int, training: bool | None, name: str, variables: Sequence[Any]
    ) -> _Made:
        """Returns the same as :meth:`across`, but with gradients refused.

        Args:
            flat: the batch.
            num_microbatches: see :meth:`across`.
            training: the `training` argument of layers.
            name: the name of the model.
            variables: the model's trainable variables.
        """
        with layer_api.unrecorded():
            outputs, added = self.across(flat, num_microbatches, training)
        made = refused_gradients(name, [*outputs, *added], flat, variables)
        set_metadata(made, MASK, metadata_of(outputs, MASK))
        return made[: len(outputs)], made[len(outputs) :]

    def masks(self, flat: Sequence[Any], num_microbatches: int) -> list[Any] | None:
        """Returns the masks of the outputs of the whole batch; None if there are none.

        A loss is a mean over the unmasked entries of the whole batch, so they are counted before the first micro-batch
        is computed. In a graph, only the ops that the masks need run in this forward pass, which are few.
        """
        if all(mask is None for mask in metadata_of(self._placed.outputs, MASK)):
            return None
        if self._placed.crosses:
            return masks_across(self._placed, self._inputs, flat, self.computed, num_microbatches)
        with keras.StatelessScope():
            masks = metadata_of(self.computed(flat, training=False), MASK)
        self._take_added_losses()
        return masks

    def _take_added_losses(self) -> list[Any]:
        return [loss for stage in self._placed.stages for loss in stage.take_added_losses()]
