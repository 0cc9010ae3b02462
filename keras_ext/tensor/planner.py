"""Chooses a split for each layer of a model, from the model's graph and from what the user wants.

Its contract is tested in ``tests/keras_ext/tensor/test_plan.py``.
"""

from __future__ import annotations

import math
import re
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras

from keras_ext.expert.layer import MixtureOfExperts
from keras_ext.tensor.activations import is_elementwise
from keras_ext.tensor.attention_heads import Heads, head_dims, makes_heads
from keras_ext.tensor.channel_chains import end_of_chain, in_pieces_of_channels
from keras_ext.tensor.custom_layers import held_twice, plain_type
from keras_ext.tensor.cuts import Cuts, column_cuts, cuts_along, gathered_cuts, hidden_cuts, quantized_cuts, row_cuts
from keras_ext.tensor.feed_forward_pairs import FeedForward, feed_forwards_in
from keras_ext.tensor.graphs import followers_in, followers_inside, graphs_of, layers_of
from keras_ext.tensor.head_trials import attentions_in
from keras_ext.tensor.layout_plan import kinds_and_dims
from keras_ext.tensor.plan import LARGE, Choice, Plan, class_name_of
from keras_ext.tensor.sequence_plan import in_pieces_of_sequences

_MATRICES = (keras.layers.Dense, keras.layers.Conv2D)
_ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
# The kinds of split that each class of layers can have.
_KINDS_OF: Mapping[type, tuple[str, ...]] = {
    **dict.fromkeys(_MATRICES, ("column", "row")),
    **dict.fromkeys(_ATTENTION, ("heads",)),
    keras.layers.Embedding: ("vocab",),
    keras.layers.ReversibleEmbedding: ("vocab",),
    keras.layers.EinsumDense: ("column", "row"),
}


def make_plan(
    model: Any, num_shards: int, wanted: Mapping[str, Any] | None = None, *, sequence_parallel: bool = False
) -> Plan:
    """Chooses a split for every layer of a Sequential or Functional model.

    By default every layer that can be split is split; of quantized ones, those with an int8 kernel or table, by columns
    or rows. If the output of a ``Dense`` or ``Conv2D`` goes only to one other layer of its class, through nothing but
    channelwise layers, it is split by columns and the other by rows, so that the pair costs one all-reduce each way
    (Shoeybi et al., arXiv:1909.08053, section 3). The rest are split by columns, with gathered outputs, or by rows if
    the number of outputs is not divisible.

    In layers of other classes, weights with more than `LARGE` of the model's parameters are split, and gathered when
    the layer is called.

    Args:
        model: a built model.
        num_shards: size of the mesh axis "tensor".
        wanted: replaces the default: a kind, or None, for each regular expression; the first that is found in a layer's
            path decides. Layers in whose path none is found stay whole. Or a ``keras.distribution.LayoutMap``.
        sequence_parallel: whether attentions and row-parallel layers leave their output in pieces of the sequence.

    Raises:
        ValueError: the model is neither Sequential nor Functional, or is not built; a kind does not exist, or not for
            that layer; a quantized layer is to be split; an expression matches no path.
    """
    kinds: dict[str, str | None] = {}
    followers: dict[str, str] = {}
    layers = dict(layers_of(model))
    kinds.update(dict.fromkeys(layers))
    attentions = attentions_in(layers, num_shards)
    shared = held_twice(model)
    pairs = [
        pair
        for layer in layers.values()
        for pair in feed_forwards_in(layer, num_shards)
        if not any(id(each) in shared for each in (*pair.up, pair.down))
    ]
    paths = {id(layer): path for path, layer in layers.items()}
    for graph in graphs_of(model):
        followers |= followers_in(graph, paths)
    for layer in layers.values():
        followers |= followers_inside(layer, paths)
    dims: dict[int, int] = {}
    if isinstance(wanted, keras.distribution.LayoutMap):
        kinds, dims = kinds_and_dims(layers, wanted, num_shards)
        wanted_heads = {path: head_dims(layers[path], heads) for path, heads in attentions.items()}
        kinds |= {path: "heads" for path, own in wanted_heads.items() if own.items() <= dims.items()}
        # There is no kind for an ``EinsumDense`` that is cut along a dim over which it sums, unless it ends a pair.
        kinds |= {paths[id(pair.down)]: "row" for pair in pairs if pair.dims.items() <= dims.items()}
    elif wanted is None:
        _choose(kinds, layers, followers, num_shards, attentions, pairs)
    else:
        _take(kinds, layers, wanted, attentions)
    own_dims: dict[int, int] = {}
    attentions = {path: heads for path, heads in attentions.items() if kinds[path] == "heads"}
    for path, heads in attentions.items():
        own_dims |= head_dims(layers[path], heads)
        for name in (*heads.into, heads.out):
            projection = getattr(layers[path], name)
            kinds[paths[id(projection)]] = _kind_of_projection(projection)
    for path, layer in layers.items():
        if kinds[path] not in (None, quantized_kind(layer)) and is_quantized(layer) and path not in attentions:
            possible = quantized_kind(layer)
            remedy = f"Use {possible!r}, or leave" if possible else "Leave"
            raise ValueError(
                f"The plan splits {path!r}, which is quantized: there is no kernel for such a quantized shard. "
                f"{remedy} it out of the plan, so that it stays whole. Received: {kinds[path]!r} for a "
                f"{class_name_of(layer)} quantized to {layer.quantization_mode!r}."
            )
    recorded: set[str] = set()
    between: set[str] = set()
    for pair in pairs:
        ups = [paths[id(up)] for up in pair.up]
        if kinds[paths[id(pair.down)]] == "row" and all(kinds[each] == "column" for each in ups):
            between |= set(ups)
            recorded |= set() if pair.is_direct else set(ups)
            own_dims |= pair.dims
    # Quantized layers gather their outputs, attention layers of other libraries add them up.
    whole = {path for path, layer in layers.items() if is_quantized(layer) or path in attentions}
    in_pieces = {path: None if path in whole else kind for path, kind in kinds.items()}
    passes = in_pieces_of_channels(in_pieces, layers, followers) | between
    passes |= {paths[id(getattr(layers[path], name))] for path, heads in attentions.items() for name in heads.into}
    of_sequences: frozenset[str] = frozenset()
    for graph in graphs_of(model) if sequence_parallel else ():
        of_sequences |= in_pieces_of_sequences(graph, paths, in_pieces)
    choices = {}
    least_size = LARGE * sum(math.prod(weight.shape) for weight in model.weights)
    for path, layer in layers.items():
        cuts = _cuts(kinds[path], layer, num_shards, least_size if wanted is None else math.inf, dims, own_dims)
        kind = kinds[path]
        if isinstance(layer, MixtureOfExperts):
            # A mixture of experts splits itself, whatever is chosen for other layers.
            kind = "hidden" if cuts.dims else None
        elif path not in attentions and (
            kind in (None, "gathered") or plain_type(layer) is keras.layers.EinsumDense or is_quantized(layer)
        ):
            kind = (kind or "gathered") if cuts.dims else None
        own = (path in passes, path in of_sequences - passes)
        choices[path] = Choice(path, layer, kind, *own, cuts.dims, cuts.reason, attentions.get(path), path in recorded)
    return Plan(choices, num_shards)


def _kind_of_projection(layer: Any) -> str:
    # The scale of a quantized layer's input is taken over all of its channels.
    return "column" if makes_heads(layer) or is_quantized(layer) else "row"


def _cuts(
    kind: str | None,
    layer: Any,
    num_shards: int,
    least_size: float,
    dims: Mapping[int, int],
    own_dims: Mapping[int, int],
) -> Cuts:
    """Returns the cuts of single weights, for layers that are not split as a whole."""
    if not layer.built or num_shards == 1 or kind == "heads":
        return Cuts()
    if isinstance(layer, MixtureOfExperts):
        return hidden_cuts(layer, num_shards)
    is_projection = plain_type(layer) is keras.layers.EinsumDense
    dim = own_dims.get(id(layer._kernel), dims.get(id(layer._kernel))) if is_projection else None
    if kind is not None and is_quantized(layer):
        return quantized_cuts(layer, num_shards, dim)
    if kind == "column" and is_projection:
        return column_cuts(layer, num_shards, dim)
    if kind == "row":
        return row_cuts(layer, num_shards, dim) if is_projection else Cuts()
    if dims:
        return cuts_along(layer, dims) if kind in (None, "gathered") else Cuts()
    if kind == "gathered":
        return gathered_cuts(layer, num_shards)
    return gathered_cuts(layer, num_shards, least_size) if kind is None else Cuts()


def is_quantized(layer: Any) -> bool:
    """Returns True if a layer is quantized, or holds one that is."""
    return any(getattr(each, "quantization_mode", None) is not None for each in layer._flatten_layers())


def quantized_kind(layer: Any) -> str | None:
    """Returns the kind of split that a quantized layer can have; None if it can have none, or is not quantized."""
    if getattr(layer, "quantization_mode", None) != "int8" or not layer.built:
        return None
    cls = plain_type(layer)
    if cls in (keras.layers.Embedding, keras.layers.ReversibleEmbedding):
        return "vocab"
    return "column" if cls in (keras.layers.Dense, keras.layers.EinsumDense) else None


def _choose(
    kinds: dict[str, str | None],
    layers: Mapping[str, Any],
    followers: Mapping[str, str],
    num_shards: int,
    attentions: Collection[str],
    pairs: Sequence[FeedForward],
) -> None:
    kinds.update(dict.fromkeys(attentions, "heads"))
    paths = {id(layer): path for path, layer in layers.items()}
    for pair in pairs:
        if not any(map(is_quantized, (*pair.up, pair.down))):
            kinds.update({paths[id(up)]: "column" for up in pair.up} | {paths[id(pair.down)]: "row"})
    for path, layer in layers.items():
        # A model may hold layers that it never calls.
        if kinds[path] is not None or plain_type(layer) not in _KINDS_OF or not layer.built:
            continue
        if is_quantized(layer):
            kinds[path] = quantized_kind(layer)
        elif issubclass(plain_type(layer), keras.layers.Embedding):
            kinds[path] = "vocab" if layer.input_dim >= num_shards else None
        elif plain_type(layer) is keras.layers.EinsumDense:
            kinds[path] = "column"
        elif isinstance(layer, _ATTENTION):
            heads = [
                getattr(layer, name)
                for name in ("num_heads", "num_query_heads", "num_key_value_heads")
                if hasattr(layer, name)
            ]
            kinds[path] = None if any(count % num_shards for count in heads) else "heads"
        elif getattr(layer, "groups", 1) == 1:
            outputs, inputs = _outputs(layer), _inputs(layer)
            last = end_of_chain(path, layers, followers)
            if outputs % num_shards == 0:
                kinds[path] = "column"
                if last is not None and kinds[last] is None and is_elementwise(layer.activation):
                    kinds[last] = None if is_quantized(layers[last]) else "row"
            elif inputs % num_shards == 0:
                kinds[path] = "row"


def _take(
    kinds: dict[str, str | None],
    layers: Mapping[str, Any],
    wanted: Mapping[str, str | None],
    attentions: Mapping[str, Heads],
) -> None:
    unused = set(wanted)
    for path, layer in layers.items():
        expression = next((e for e in wanted if re.search(e, path)), None)
        if expression is None:
            continue
        unused.discard(expression)
        kind = wanted[expression]
        if kind == "heads" and any(path.startswith(f"{each}/") for each in attentions if kinds[each] == "heads"):
            # An expression that is found in the path of an attention is found in those of the layers inside it.
            continue
        is_mixture = isinstance(layer, MixtureOfExperts)
        own = ("heads",) if path in attentions else _KINDS_OF.get(plain_type(layer), ())
        possible = ("hidden",) if is_mixture else (*own, "gathered")
        if kind not in possible and (kind is not None or is_mixture):
            raise ValueError(
                f"The plan asks for {kind!r} for {path!r}, a {class_name_of(layer)}, which can be {list(possible)}. "
                f"Make the expression "
                f"{expression!r} narrower, or put one for this layer before it. Received: plan={dict(wanted)}."
            )
        kinds[path] = kind
    if unused:
        raise ValueError(
            f"Nothing in the model has a path in which {sorted(unused)} is found. Its layers: {list(layers)}. "
            f"Received: plan={dict(wanted)}."
        )


def _outputs(layer: Any) -> int:
    return int(layer.units if type(layer) is keras.layers.Dense else layer.filters)


def _inputs(layer: Any) -> int:
    return int(layer.kernel.shape[-2])
