"""The forward pass of a pipeline whose stages are in several processes.

Each process computes its own stages, micro-batch by micro-batch, and sends the values that other processes use.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_ext.pipeline.batch_state import BatchState, ControlDependencies
from keras_ext.pipeline.exchange import Exchange
from keras_ext.pipeline.microbatch import Microbatches
from keras_ext.pipeline.placed_stages import PlacedStages
from keras_ext.pipeline.stage import penalties_of
from keras_ext.tensor_metadata import MASK, metadata_of
from strategies import layer_api
from strategies.schedules import Action, Kind


@dataclass(frozen=True)
class Flowed:
    """The result of a forward pass.

    Attributes:
        values: for each micro-batch, values by the `id` of Keras' tensors; they include the model's outputs in the
            processes to which these were sent.
        added: for each micro-batch, the losses that layers have added; complete in the process of the last stage.
        penalties: the penalties of weights; complete in the process of the last stage.
    """

    values: Sequence[Mapping[int, Any]]
    added: Sequence[Sequence[Any]]
    penalties: Sequence[Any]


def flowed(
    placed: PlacedStages,
    penalties: Sequence[Callable[[], list[Any]]],
    inputs: Sequence[Mapping[int, Any]],
    training: bool | None,
    outputs_to_all: bool,
) -> Flowed:
    """Computes the stages of this process for all micro-batches.

    Args:
        placed: the stages.
        penalties: for each stage, a function that returns the penalties of its weights.
        inputs: for each micro-batch, the model's inputs by the `id` of Keras' tensors.
        training: the `training` argument of layers.
        outputs_to_all: True to send the model's outputs to all processes, False to send them to that of the last stage.
    """
    stages, devices, parts = placed.stages, placed.devices, placed.parts
    state = BatchState([dict(each) for each in inputs])
    # Devices compute at the same time: at each tick, each stage computes its next micro-batch.
    ticks = range(len(stages) + len(inputs) - 1)
    order = [Action(k, Kind.FORWARD, t - k) for t in ticks for k in range(len(stages)) if 0 <= t - k < len(inputs)]
    dependencies = ControlDependencies(
        [[action for action in order if devices[action.stage] == part] for part in parts.owned]
    )
    exchange = Exchange(placed, state, dependencies, outputs_to_all, training)
    for k, part in enumerate(devices):
        if part is not None:
            with parts.on(part):
                state.penalties[k] = penalties[k]()
    exchange.penalties()
    for action in order:
        k, i = action.stage, action.microbatch
        stage, part = stages[k], devices[k]
        if part is not None:
            added: list[Any] = []
            with parts.on(part):
                made = stage.compute([state.values[i][id(tensor)] for tensor in stage.inputs], training, added)
            state.values[i].update(zip(map(id, stage.outputs), made, strict=True))
            state.added[k, i] = added
            dependencies.note(part, made)
        exchange.after(action)
    return Flowed(
        state.values,
        [[loss for k in range(len(stages)) for loss in state.added.get((k, i), [])] for i in range(len(inputs))],
        [each for _, own in sorted(state.penalties.items()) for each in own],
    )


def across(
    placed: PlacedStages,
    inputs: Sequence[Any],
    flat: Sequence[Any],
    num_microbatches: int,
    training: bool | None,
    outputs_to_all: bool,
) -> tuple[list[Any], list[Any], list[Any]]:
    """Returns the outputs of a batch, their masks, and the losses that layers add, including penalties of weights.

    Args:
        placed: the stages.
        inputs: the model's inputs, Keras' tensors.
        flat: the batch.
        num_microbatches: the number of micro-batches.
        training: the `training` argument of layers.
        outputs_to_all: see `flowed`. If False, processes without the last stage return empty lists.
    """
    cut_up, pieces = _cut(inputs, flat, num_microbatches)
    shares = [layer_api.as_constant(weight) for weight in cut_up.weights()]
    found = flowed(placed, penalties_of(placed.stages), pieces, training, outputs_to_all)
    if not (outputs_to_all or placed.has_last):
        return [], [], []
    outputs = cut_up.join([[each[id(tensor)] for tensor in placed.outputs] for each in found.values])
    added = [[layer_api.as_mean(each, w) for each in own] for own, w in zip(found.added, shares, strict=True)]
    return outputs, metadata_of(outputs, MASK), [*weighed_sums(added, shares), *found.penalties]


def refused_gradients(name: str, tensors: Sequence[Any], flat: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns `tensors`, with gradients refused on all processes: outside of `train_step`, no message sends gradients.

    Args:
        name: the name of the model.
        tensors: tensors that the model has computed.
        flat: the batch.
        variables: the model's trainable variables.
    """
    return layer_api.refuse_gradients(
        tensors,
        flat,
        variables,
        f"The stages of the pipeline {name!r} are in several processes, which compute gradients together in its own "
        "train_step only. Received: a gradient of what a call of the model returned, as by tf.GradientTape, in a "
        "train_step of one's own, or in a model that has the pipeline as a layer. Train it by its own "
        "compile and fit, or train_step, with all layers that are trained given to PipelineModel, or keep the stages "
        "in one process. To train only what takes its outputs, set `trainable = False` on the pipeline.",
    )


def masks_across(
    placed: PlacedStages,
    inputs: Sequence[Any],
    flat: Sequence[Any],
    computed: Callable[[Sequence[Any], bool], Sequence[Any]],
    num_microbatches: int,
) -> list[Any]:
    """Returns the masks of a batch's outputs; without the last stage, a process may return None for each.

    Args:
        placed: the stages.
        inputs: the model's inputs, Keras' tensors.
        flat: the batch, which all processes have.
        computed: computes all stages; takes a batch and the `training` argument.
        num_microbatches: the number of micro-batches, used if the masks depend on computations of other processes.
    """

    def masks(*flat: Any) -> list[Any]:
        with keras.StatelessScope():
            return metadata_of(computed(flat, False), MASK)

    # Nearly always, masks follow from the inputs without any weights.
    found = layer_api.compute_from_inputs(masks, flat)
    if found is None:
        cut_up, pieces = _cut(inputs, flat, num_microbatches)
        with keras.StatelessScope():
            values = flowed(placed, [list for _ in placed.stages], pieces, False, outputs_to_all=False).values
        made = [[each.get(id(tensor)) for tensor in placed.outputs] for each in values]
        found = metadata_of(cut_up.join(made), MASK) if placed.has_last else [None] * len(placed.outputs)
    return found


def weighed_sums(losses: Sequence[Sequence[Any]], shares: Sequence[Any]) -> list[Any]:
    """Returns the mean of each added loss over micro-batches, weighted by their shares of the rows."""
    weighed = [[each * ops.cast(w, each.dtype) for each in own] for own, w in zip(losses, shares, strict=True)]
    return [sum(each[1:], each[0]) for each in zip(*weighed, strict=True)]


def _cut(inputs: Sequence[Any], flat: Sequence[Any], number: int) -> tuple[Microbatches, list[dict[int, Any]]]:
    cut_up = Microbatches.from_batch(list(flat), number)
    return cut_up, [dict(zip(map(id, inputs), each, strict=True)) for each in cut_up.split(list(flat))]
