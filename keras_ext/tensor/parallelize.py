"""Splits the layers of a plain model."""

from __future__ import annotations

import functools
import logging
from collections.abc import Callable, Mapping
from typing import Any

import keras

from keras_ext.cloning import Copies, copy_state, copy_training, remade
from keras_ext.tensor import channelwise, positionwise
from keras_ext.tensor.attention import ParallelGroupQueryAttention, ParallelMultiHeadAttention
from keras_ext.tensor.conv import ColumnParallelConv2D, RowParallelConv2D
from keras_ext.tensor.custom_layers import plain_type
from keras_ext.tensor.dense import ColumnParallelDense, RowParallelDense
from keras_ext.tensor.embedding import VocabParallelEmbedding, VocabParallelReversibleEmbedding
from keras_ext.tensor.head_parallel import head_parallel_class
from keras_ext.tensor.mappings import Shards
from keras_ext.tensor.plan import Choice, Plan
from keras_ext.tensor.planner import make_plan
from keras_ext.tensor.positionwise import shardwise_operation
from keras_ext.tensor.sequence_plan import is_addition
from strategies import layer_api

_logger = logging.getLogger(__name__)

_SPLIT: Mapping[tuple[type, str], Any] = {
    (keras.layers.Dense, "column"): ColumnParallelDense,
    (keras.layers.Dense, "row"): RowParallelDense,
    (keras.layers.Conv2D, "column"): ColumnParallelConv2D,
    (keras.layers.Conv2D, "row"): RowParallelConv2D,
    (keras.layers.Embedding, "vocab"): VocabParallelEmbedding,
    (keras.layers.ReversibleEmbedding, "vocab"): VocabParallelReversibleEmbedding,
    (keras.layers.MultiHeadAttention, "heads"): ParallelMultiHeadAttention,
    (keras.layers.GroupQueryAttention, "heads"): ParallelGroupQueryAttention,
}

# Replacements of layers through which pieces of the channels pass.
_OF_CHANNELS: Mapping[type, Any] = {
    keras.layers.Activation: channelwise.ShardwiseActivation,
    keras.layers.AveragePooling2D: channelwise.ShardwiseAveragePooling2D,
    keras.layers.BatchNormalization: channelwise.ChannelSplitBatchNormalization,
    keras.layers.Dropout: channelwise.ShardwiseDropout,
    keras.layers.GlobalAveragePooling2D: channelwise.ShardwiseGlobalAveragePooling2D,
    keras.layers.LeakyReLU: channelwise.ShardwiseLeakyReLU,
    keras.layers.MaxPooling2D: channelwise.ShardwiseMaxPooling2D,
    keras.layers.ReLU: channelwise.ShardwiseReLU,
    keras.layers.ZeroPadding2D: channelwise.ShardwiseZeroPadding2D,
}


# The same for pieces of the sequence.
_OF_POSITIONS: Mapping[type, Any] = {
    keras.layers.Add: positionwise.ShardwiseAdd,
    keras.layers.Dropout: channelwise.ShardwiseDropout,
    keras.layers.LayerNormalization: positionwise.ShardwiseLayerNormalization,
    keras.layers.RMSNormalization: positionwise.ShardwiseRMSNormalization,
}


def parallelize(model: Any, plan: Mapping[str, Any] | None = None, *, sequence_parallel: bool = False) -> Any:
    """Returns the model with its layers split over the mesh axis "tensor" of the strategy in whose scope it is called.

    The new model has the old one's graph, layer names, weights, and, if it was compiled, its optimizer with all slots,
    loss and metrics. ``get_weights``, ``summary`` and files show the same as for the old model. The old model is left
    unchanged; delete it to free its memory.

    Args:
        model: a built Sequential or Functional model. Layers of nested models are split as well, as are those inside
            custom layers, which are copied attribute by attribute, without their constructors.
        plan: a kind, ``"column"``, ``"row"``, ``"vocab"``, ``"heads"``, ``"hidden"``, ``"gathered"`` or None, for
            each regular expression over the paths of layers, such as ``{"ffn_up": "column", "ffn_down": "row"}``; or a
            ``keras.distribution.LayoutMap``, in which the axis other than the data axis is taken as "tensor". A mixture
            of experts is ``"hidden"`` in any case, and refuses other kinds, None included. If the plan itself is None,
            it is the default, which `default_plan` shows.
        sequence_parallel: whether normalisation, dropout and shortcuts between the split layers of a transformer work
            on ``1 / t`` of the sequence at each shard (Korthikanti et al., arXiv:2205.05198). All-reduces become
            reduce-scatters and all-gathers, with the same number of bytes in total.

    Raises:
        ValueError: the model is not Sequential or Functional, the plan does not fit it, or sizes do not divide.
    """
    with layer_api.global_state_kept():
        chosen = make_plan(model, Shards.present().count, plan, sequence_parallel=sequence_parallel)
    if chosen.num_shards == 1:
        if layer_api.is_in_scope():
            _logger.warning("The mesh of this strategy has no axis 'tensor': nothing of %r is split.", model.name)
        else:
            _logger.warning("parallelize was called outside of strategy.scope(): nothing of %r is split.", model.name)
    with layer_api.global_state_kept():
        instead = _instead_of(chosen, sequence_parallel=sequence_parallel and chosen.num_shards > 1)
        # A mixture of experts splits itself when it is copied.
        cut = [choice for choice in chosen.values() if choice.kind != "hidden"]
        dims = {id(weight): dim for choice in cut for weight, dim in choice.dims}
        with layer_api.values_follow():
            copies = Copies(instead, dims, classes=_classes(chosen))
            split = copies.graph(model)
        _leave_outputs_in_pieces(chosen, copies)
        copy_state(model, split)
        copy_training(model, split)
    return split


def default_plan(model: Any, *, sequence_parallel: bool = False) -> Plan:
    """Returns the plan that `parallelize` uses for `model` in the current scope by default. It prints as a table.

    Args:
        model: as in `parallelize`.
        sequence_parallel: likewise.

    Raises:
        ValueError: the model is not Sequential or Functional, or is not built.
    """
    with layer_api.global_state_kept():
        return make_plan(model, Shards.present().count, sequence_parallel=sequence_parallel)


def _instead_of(plan: Plan, *, sequence_parallel: bool) -> Callable[[Any], Any]:
    """Returns a function that replaces a layer that is split or that passes pieces on, and returns None for others."""
    choices = {id(choice.layer): choice for choice in plan.values()}

    def instead(layer: Any) -> Any:
        if not isinstance(layer, keras.Layer):
            return shardwise_operation(layer) if sequence_parallel and is_addition(layer) else None
        choice = choices.get(id(layer))
        # `Copies` copies layers whose weights are cut one by one.
        if choice is None or choice.dims or choice.heads is not None:
            return None
        return _split(choice) if choice.kind or choice.pieces or choice.sequence else None

    return instead


def _leave_outputs_in_pieces(plan: Plan, copies: Copies) -> None:
    """Has each ``EinsumDense`` of a feed-forward part leave its output in pieces, for the layer split by rows."""
    # Attention layers take the pieces of their projections themselves.
    heads = [(choice.layer, name) for choice in plan.values() if choice.heads for name in choice.heads.into]
    of_heads = {id(getattr(layer, name)) for layer, name in heads}
    for choice in plan.values():
        if choice.dims and choice.pieces and id(choice.layer) not in of_heads:
            copy = copies.get(choice.layer)
            copy.gather_output, copy.records_ops = False, choice.recorded


def _classes(plan: Plan) -> dict[int, Any]:
    """Returns the classes of the copies of attention layers that are split by heads, by the layer's id."""
    found = [choice for choice in plan.values() if choice.heads is not None]
    return {id(choice.layer): head_parallel_class(choice.layer.__class__, choice.heads) for choice in found}


def _split(choice: Choice) -> Any:
    layer = choice.layer
    if choice.kind is not None:
        own: dict[str, Any] = {"gather_output": not choice.pieces} if choice.kind == "column" else {}
        own |= {"records_ops": True} if choice.recorded else {}
        own |= {"sequence_parallel": True} if choice.sequence else {}
        layer_class: Any = type(layer)
        return remade(layer, _saved_as(_SPLIT[plain_type(layer), choice.kind], layer_class), **own)
    kept = _OF_CHANNELS if choice.pieces else _OF_POSITIONS if choice.sequence else {}
    return remade(layer, kept.get(type(layer)))


@functools.cache
def _saved_as(split: Any, layer_class: Any) -> Any:
    """Returns `split`, or a subclass of it that is saved as `layer_class`, an alias of the plain class."""
    if issubclass(split, layer_class):
        return split
    names = {"__module__": split.__module__, "__qualname__": split.__qualname__}
    return layer_api.saved_as(layer_class)(type(split.__name__, (split, layer_class), names))
