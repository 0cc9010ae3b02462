"""A plain model's layers, split."""

from __future__ import annotations

import contextlib
import logging
from collections.abc import Mapping
from typing import Any

import keras

from keras_ext.cloning import cloned, copy_state, copy_values, pairs, remade
from keras_ext.tensor import channelwise, positionwise
from keras_ext.tensor.attention import ParallelGroupQueryAttention, ParallelMultiHeadAttention
from keras_ext.tensor.conv import ColumnParallelConv2D, RowParallelConv2D
from keras_ext.tensor.custom_layers import adopt, is_custom, is_graph
from keras_ext.tensor.dense import ColumnParallelDense, RowParallelDense
from keras_ext.tensor.embedding import VocabParallelEmbedding
from keras_ext.tensor.layer import SplitLayer
from keras_ext.tensor.mappings import Shards
from keras_ext.tensor.plan import Choice, Plan, make_plan
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
    (keras.layers.MultiHeadAttention, "heads"): ParallelMultiHeadAttention,
    (keras.layers.GroupQueryAttention, "heads"): ParallelGroupQueryAttention,
}

# Replacements of layers through which pieces pass.
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


def parallelize(model: Any, plan: Mapping[str, str | None] | None = None, *, sequence_parallel: bool = False) -> Any:
    """Returns the model with its layers split over the mesh axis "tensor" of the strategy whose scope this is in.

    The new model has the old one's graph, layer names, weights, and, if it was compiled, its optimizer with all slots,
    loss and metrics. To ``get_weights``, ``summary`` and files it is what the old one was. The old one is left as it
    is; drop it to free its memory.

    Args:
        model: a Sequential or Functional model, built; models inside of it are taken apart as well, as are custom
            layers that hold layers, if they are written in Keras' ops and have a `get_config`.
        plan: a kind, ``"column"``, ``"row"``, ``"vocab"``, ``"heads"`` or None, for each regular expression over the
            paths of layers, such as ``{"ffn_up": "column", "ffn_down": "row"}``. None for the default, which
            `default_plan` shows.
        sequence_parallel: whether what is between the split layers of a transformer, normalisation, dropout and
            shortcuts, works on ``1 / t`` of the sequence at each shard (Korthikanti et al., arXiv:2205.05198).
            All-reduces become reduce-scatters and all-gathers, of as many bytes together.

    Raises:
        ValueError: the model cannot be taken apart, the plan does not fit it, or sizes do not divide.
    """
    chosen = make_plan(model, Shards.present().count, plan, sequence_parallel=sequence_parallel)
    if chosen.num_shards == 1:
        _logger.warning("The mesh of this strategy has no axis 'tensor': nothing of %r is split.", model.name)
    with layer_api.global_state_kept():
        with contextlib.ExitStack() as adopted:
            split = _cloned(model, chosen, "", sequence_parallel and chosen.num_shards > 1, adopted)
        _check(chosen, {id(one): other for one, other in pairs(model, split)})
        copy_state(model, split)
        if getattr(model, "compiled", False):
            split.compile_from_config(model.get_compile_config())
            if model.optimizer.built:
                # Counted in the order of the weights, which Keras' own copy would not have yet.
                split.optimizer.build(split.trainable_variables)
                _copy_slots(model.optimizer, split.optimizer)
            # As its weights, which need not be the same on all processes.
            layer_api.replica_parts().agree_on(split.optimizer.variables)
    return split


def default_plan(model: Any, *, sequence_parallel: bool = False) -> Plan:
    """Returns what `parallelize` does with `model` here if it is given no plan. It prints as a table.

    Args:
        model: as `parallelize` takes it.
        sequence_parallel: likewise.

    Raises:
        ValueError: the model cannot be taken apart.
    """
    return make_plan(model, Shards.present().count, sequence_parallel=sequence_parallel)


def _cloned(model: Any, plan: Plan, prefix: str, sequence_parallel: bool, adopted: contextlib.ExitStack) -> Any:
    # By the layer in whose place they are: one that is in two places stays one.
    made: dict[int, tuple[Any, Any]] = {}

    def replaced(old: Any, path: str, inner: Any) -> Any:
        """Returns the replacement of a layer inside a custom one; ``old`` is its counterpart in the old model."""
        if old is None or isinstance(inner, SplitLayer):
            return inner
        if id(inner) not in made:
            made[id(inner)] = (inner, clone_inside(old, path, inner))
        return made[id(inner)][1]

    def clone_inside(old: Any, path: str, inner: Any) -> Any:
        if is_graph(old):
            return _cloned(old, plan, f"{path}/", sequence_parallel=False, adopted=adopted)
        if is_custom(old):
            adopted.enter_context(adopt(inner, old, path, replaced))
            return inner
        choice = plan[path]
        if not choice.kind and not choice.pieces:
            return inner
        new = _split(choice)
        if inner.built:
            # The layer around it builds those inside of it when it is made, as one of KerasHub's decoders does.
            new.build_from_config(inner.get_build_config())
        return new

    def clone(layer: Any) -> Any:
        if not isinstance(layer, keras.Layer):
            return shardwise_operation(layer) if sequence_parallel and is_addition(layer) else layer
        path = f"{prefix}{layer.name}"
        if is_graph(layer):
            return _cloned(layer, plan, f"{path}/", sequence_parallel, adopted)
        new = _split(plan[path])
        if is_custom(layer):
            adopted.enter_context(adopt(new, layer, path, replaced))
        return new

    return cloned(model, clone)


def _check(plan: Plan, made: Mapping[int, Any]) -> None:
    """Refuses a model in which a custom layer has made layers where they could not be replaced."""
    whole = [
        path for path, choice in plan.items() if choice.kind and not isinstance(made.get(id(choice.layer)), SplitLayer)
    ]
    if whole:
        raise ValueError(
            f"The layers {whole} are put into a list while the custom layer around them is built, where they cannot be "
            "replaced. Make them in its `__init__`, set them as attributes, or give a plan that leaves them whole: "
            f"{{{whole[0]!r}: None, ...}}."
        )


def _split(choice: Choice) -> Any:
    layer = choice.layer
    if choice.kind is not None:
        own: dict[str, Any] = {"gather_output": not choice.pieces} if choice.kind == "column" else {}
        own |= {"sequence_parallel": True} if choice.sequence else {}
        return remade(layer, _SPLIT[type(layer), choice.kind], **own)
    kept = _OF_CHANNELS if choice.pieces else _OF_POSITIONS if choice.sequence else {}
    return remade(layer, kept.get(type(layer)))


def _copy_slots(old: Any, new: Any) -> None:
    copy_values(old.variables, new.variables)
    if hasattr(old, "inner_optimizer"):
        _copy_slots(old.inner_optimizer, new.inner_optimizer)
