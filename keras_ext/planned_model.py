"""Models that exist only for their sizes: they are split, or cut into stages, as for training; weights have no values.

Its contract is tested in ``tests/keras_ext/test_memory_plan.py``.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras

from keras_ext.activations import activation_bytes
from keras_ext.cloning.counterparts import Counterparts
from keras_ext.cloning.optimizers import OptimizerCopies
from keras_ext.expert.split_bank import SplitBank
from keras_ext.memory import slots_of, weights_of
from keras_ext.pipeline.model import PipelineModel
from keras_ext.tensor.layer import SplitLayer
from keras_ext.tensor.parallelize import parallelize
from strategies import layer_api
from strategies.planning import ModelSizes, Weight, is_shardable


@dataclass(frozen=True)
class PlannedModel:
    """A model as the devices of one replica have it.

    Attributes:
        model: the model; split, and a pipeline, if the axes say so.
        sizes: for each position on the axis "pipe", those of the device with the most; one without the axis.
    """

    model: Any
    sizes: Sequence[ModelSizes]

    @property
    def is_pipeline(self) -> bool:
        """True if stages of the model are on several devices."""
        return len(self.sizes) > 1

    def activations(self, num_rows: int, length: int | None = None) -> list[int | None]:
        """Returns the bytes of activations for each position on the axis "pipe"; None if they are not known.

        Args:
            num_rows: the number of rows of a replica.
            length: the size of the dims of inputs that have none, except the rows.
        """
        if not self.is_pipeline:
            found = activation_bytes(self.model, num_rows, length=length)
            return [None if found is None else found[0].together]
        schedule = self.model.schedule()
        # Micro-batches differ by at most one row; the first are the largest.
        num_rows = -(-num_rows // self.model.num_microbatches)
        calls = [[node.operation for node in stage.nodes] for stage in self.model._stages]
        stages = activation_bytes(self.model, num_rows, length=length, stages=calls) or []
        together = [0] * len(self.sizes)
        for k, stage in enumerate(stages):
            num_held, is_recomputed = schedule.num_held(k), k in self.model._remat
            position = schedule.placement.position_of(k, len(self.sizes))
            together[position] += num_held * (stage.received + (0 if is_recomputed else stage.held))
            together[position] += stage.inside + (stage.held if is_recomputed else 0)
        return list(together)


def planned_model(
    model: Any,
    made: Sequence[layer_api.UndrawnVariable],
    axes: Mapping[str, int],
    num_microbatches: int | None = None,
) -> PlannedModel:
    """Splits a model, and cuts it into stages, and returns its sizes.

    Args:
        model: compiled; made in a block of `variables_undrawn` for the same axes. If it is split already, or a
            pipeline, it is taken as it is.
        made: all variables that the block has made; it is extended by those of the split model.
        axes: the sizes of the axes "pipe" and "tensor".
        num_microbatches: of a pipeline that is made here; 1 if left out.

    Raises:
        ValueError: the model is not compiled, or has weights that the block has not made; `parallelize` or a pipeline
            refuses it; `num_microbatches` is given, and no pipeline is made.
    """
    _check(model, made)
    if axes["tensor"] > 1 and not _is_split(model):
        model = parallelize(model)
    is_to_cut = axes["pipe"] > 1 and not isinstance(model, PipelineModel)
    if num_microbatches is not None and not is_to_cut:
        raise ValueError(
            "num_microbatches is that of the pipeline that is made of a model for a mesh with the axis 'pipe'. Leave "
            f"it out without the axis, and if make_model makes a pipeline. Received: {num_microbatches!r}, {model!r}."
        )
    source = model
    if is_to_cut:
        model = PipelineModel(source, num_microbatches=num_microbatches or 1, partition="parameters")
    return PlannedModel(model, [_sizes_at({"pipe": k, "tensor": 0}, model, source, made) for k in range(axes["pipe"])])


def _is_split(model: Any) -> bool:
    """Returns True if `parallelize` has made the model. Mixtures of experts split themselves, in any model."""
    layers = model._flatten_layers()
    return any(isinstance(layer, SplitLayer) and not isinstance(layer, SplitBank) for layer in layers)


def _check(model: Any, made: Sequence[layer_api.UndrawnVariable]) -> None:
    if not isinstance(model, keras.Model) or getattr(model, "optimizer", None) is None:
        raise ValueError(f"make_model returns a keras.Model that is compiled. Received: {model!r}.")
    if not model.built:
        raise ValueError(
            "The weights of a model are known once the shapes of its inputs are: begin with keras.Input, or build it "
            f"in make_model. Received: {model.name!r}, which is not built."
        )
    known = {id(each.variable) for each in made}
    if outside := [variable.path for variable in model.variables if id(variable.value) not in known]:
        raise ValueError(
            "make_model makes all of the model, each time that it is called, and does not call "
            "keras.utils.clear_session: weights that exist already take memory. "
            f"Received: {len(outside)} weights that were made before, such as {outside[0]!r}."
        )


def _sizes_at(
    positions: Mapping[str, int], model: Any, source: Any, made: Sequence[layer_api.UndrawnVariable]
) -> ModelSizes:
    """Returns the sizes of the part of a model, and of its optimizer, on one device of a replica.

    The device has the variables at its positions, and those without one on an axis, as in a process of its own.

    Args:
        positions: on the axes of a replica.
        model: the model.
        source: the compiled model of which it was made; the same one if it is compiled itself.
        made: all variables, in the order of creation, in which strategies also enroll them.
    """
    order = {id(each.variable): i for i, each in enumerate(made)}
    own = [each for each in weights_of(model) if made[order[id(each.value)]].is_at(positions)]
    trained = {id(variable) for variable in model.trainable_variables}
    weights = []
    for each in sorted(own, key=lambda variable: order[id(variable.value)]):
        undrawn = made[order[id(each.value)]]
        may_shard = is_shardable(each.dtype, len(each.shape), is_trainable=undrawn.variable.trainable)
        weights.append(Weight(variable_bytes(each), each.dtype, id(each) in trained, may_shard, undrawn.is_expert))
    # An optimizer for the variables of this device only: its slots are where they are.
    optimizer = OptimizerCopies(Counterparts(source, source)).copied(source.optimizer)
    optimizer.build([each for each in own if id(each) in trained])
    slots = slots_of(optimizer)
    sharded = [each for each in slots if each.shape.num_elements() > 1]
    return ModelSizes(
        tuple(weights),
        sum(map(variable_bytes, sharded)),
        sum(map(variable_bytes, slots)) - sum(map(variable_bytes, sharded)),
        layer_api.some_need_whole(optimizer),
    )


def variable_bytes(variable: Any) -> int:
    """Returns the bytes of a variable, with or without values."""
    return int(variable.shape.num_elements() * variable.value.dtype.size)
