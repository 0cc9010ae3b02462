"""Plans for the split of each layer of a model: data, made from the model's graph."""

from __future__ import annotations

import math
import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

import keras

from keras_ext.expert.layer import MixtureOfExperts
from keras_ext.tensor.activations import is_elementwise
from keras_ext.tensor.custom_layers import plain_type
from keras_ext.tensor.cuts import Cuts, column_cuts, cuts_along, gathered_cuts, hidden_cuts, own_weights
from keras_ext.tensor.graphs import followers_in, followers_inside, graphs_of, layers_of
from keras_ext.tensor.layout_plan import kinds_and_dims
from keras_ext.tensor.sequence_plan import in_pieces_of_sequences
from keras_ext.text_table import text_table
from strategies import layer_api

#: The kinds of split of a layer. The last splits its weights only, not the computation.
KINDS = ("column", "row", "vocab", "heads", "hidden", "gathered")
#: Weights above this share of a model's parameters are split, or the plan gives the reason why not.
LARGE = 0.01

_MATRICES = (keras.layers.Dense, keras.layers.Conv2D)
_ATTENTION = (keras.layers.MultiHeadAttention, keras.layers.GroupQueryAttention)
# The kinds of split that each class of layers can have.
_KINDS_OF: Mapping[type, tuple[str, ...]] = {
    **dict.fromkeys(_MATRICES, ("column", "row")),
    **dict.fromkeys(_ATTENTION, ("heads",)),
    keras.layers.Embedding: ("vocab",),
    keras.layers.ReversibleEmbedding: ("vocab",),
    keras.layers.EinsumDense: ("column",),
}
# Layers that treat each channel by itself, so that pieces of the channels can pass.
CHANNELWISE = (
    keras.layers.Activation,
    keras.layers.ReLU,
    keras.layers.LeakyReLU,
    keras.layers.Dropout,
    keras.layers.BatchNormalization,
    keras.layers.MaxPooling2D,
    keras.layers.AveragePooling2D,
    keras.layers.GlobalAveragePooling2D,
    keras.layers.ZeroPadding2D,
)


@dataclass(frozen=True)
class Choice:
    """The choice for one layer: the split of its weights, and of its output.

    Attributes:
        path: names of the models around the layer and its own name, joined by "/"; inside a custom layer, the names of
            attributes.
        layer: the plain layer.
        kind: one of `KINDS`; None if its weights stay whole.
        pieces: True if its output stays in pieces of the channels, for the layers that follow.
        sequence: True if its output stays in pieces of the sequence.
        dims: the weights that are cut one by one, each with the dim along which it is cut.
        reason: why large weights of the layer stay whole; empty if none do.
    """

    path: str
    layer: Any
    kind: str | None
    pieces: bool = False
    sequence: bool = False
    dims: tuple[tuple[Any, int], ...] = ()
    reason: str = ""

    @property
    def class_name(self) -> str:
        """The name of the layer's class."""
        return _class_name(self.layer)


class Plan(Mapping[str, Choice]):
    """A choice for each layer of a model, by path, in the model's order. Prints as a table.

    Example:

        layers = [keras.layers.Dense(8, "relu", name="up"), keras.layers.Dense(4, name="down")]
        model = keras.Sequential([keras.Input((4,)), *layers])
        with strategies.MirroredStrategy(mesh={"data": -1, "tensor": 2}).scope():
            plan = keras_ext.default_plan(model)
        print(plan)
        kinds = {path: choice.kind for path, choice in plan.items()}
    """

    def __init__(self, choices: Mapping[str, Choice], num_shards: int) -> None:
        self._choices = dict(choices)
        self.num_shards = num_shards

    def __getitem__(self, path: str) -> Choice:
        return self._choices[path]

    def __iter__(self) -> Iterator[str]:
        return iter(self._choices)

    def __len__(self) -> int:
        return len(self._choices)

    def __str__(self) -> str:
        rows = [("layer", "class", "split", "output", "parameters", "on a device")]
        totals = [0, 0]
        for path, choice in self._choices.items():
            whole, part = parameters(choice, self.num_shards)
            totals = [totals[0] + whole, totals[1] + part]
            if whole or choice.pieces or choice.sequence:
                output = "in pieces" if choice.pieces else "sequence" if choice.sequence else "whole"
                rows.append((path, choice.class_name, choice.kind or "-", output, f"{whole:,}", f"{part:,}"))
        rows.append(("all", "", "", "", f"{totals[0]:,}", f"{totals[1]:,}"))
        lines = [f"{self.num_shards} shards", *text_table(rows, left=range(4))]
        lines.append(f"{100 * self.split_share:.1f} % of the parameters are split.")
        for path, reason in self.whole.items():
            lines.append(f"Whole: {path} ({parameters(self[path], 1)[0]:,} parameters): {reason}.")
        return "\n".join(lines)

    @property
    def split_share(self) -> float:
        """The share of the model's parameters that is split."""
        sizes = [parameters(choice, self.num_shards) for choice in self.values()]
        whole = sum(size for size, _ in sizes)
        if self.num_shards == 1 or not whole:
            return 0.0
        # A device holds 1 / n of a split weight, rounded up.
        return min(1.0, (whole - sum(part for _, part in sizes)) / whole * self.num_shards / (self.num_shards - 1))

    @property
    def whole(self) -> Mapping[str, str]:
        """The reasons why weights with more than `LARGE` of the model's parameters stay whole, by the layer's path."""
        return {path: choice.reason for path, choice in self.items() if choice.reason}


def parameters(choice: Choice, num_shards: int) -> tuple[int, int]:
    """Returns the number of a layer's parameters, and of those on the device that holds most of them."""
    whole = part = 0
    dims = {id(weight): dim for weight, dim in choice.dims}
    for weight in layer_api.joined(own_weights(choice.layer)) if choice.layer.built else ():
        size = math.prod(weight.shape)
        whole += size
        if choice.dims:
            length = weight.shape[dims[id(weight)]] if id(weight) in dims else 1
            part += size // length * -(-length // num_shards) if id(weight) in dims else size
            continue
        # The bias that a row-parallel layer or an attention adds at the end is not split, nor is one of the two
        # adapters.
        stays_whole = weight.name == "bias" and (choice.kind == "row" or "attention_output" in weight.path)
        stays_whole |= weight.name.startswith("lora") and weight.name.endswith("_a") == (choice.kind == "column")
        is_split = choice.kind is not None or (choice.pieces and type(choice.layer) is keras.layers.BatchNormalization)
        part += -(-size // num_shards) if is_split and not stays_whole else size
    return whole, part


def make_plan(
    model: Any, num_shards: int, wanted: Mapping[str, Any] | None = None, *, sequence_parallel: bool = False
) -> Plan:
    """Chooses a split for every layer of a Sequential or Functional model.

    By default every layer that can be split is split, unless it is quantized. If the output of a ``Dense`` or
    ``Conv2D`` goes only to one other layer of its class, through nothing but channelwise layers, it is split by columns
    and the other by rows, so that the pair costs one all-reduce each way (Shoeybi et al., arXiv:1909.08053, section 3).
    The rest are split by columns, with gathered outputs, or by rows if the number of outputs is not divisible.

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
    paths = {id(layer): path for path, layer in layers.items()}
    for graph in graphs_of(model):
        followers |= followers_in(graph, paths)
    for layer in layers.values():
        followers |= followers_inside(layer, paths)
    dims: dict[int, int] = {}
    if isinstance(wanted, keras.distribution.LayoutMap):
        kinds, dims = kinds_and_dims(layers, wanted, num_shards)
    elif wanted is None:
        _choose(kinds, layers, followers, num_shards)
    else:
        _take(kinds, layers, wanted)
    for path, layer in layers.items():
        if kinds[path] is not None and is_quantized(layer):
            raise ValueError(
                f"The plan splits {path!r}, which is quantized: there is no kernel for a quantized shard. Leave it out "
                f"of the plan, so that it stays whole. Received: {kinds[path]!r} for a {_class_name(layer)}."
            )
    passes = _passing(kinds, layers, followers)
    of_sequences: frozenset[str] = frozenset()
    for graph in graphs_of(model) if sequence_parallel else ():
        of_sequences |= in_pieces_of_sequences(graph, paths, kinds)
    choices = {}
    least_size = LARGE * sum(math.prod(weight.shape) for weight in model.weights)
    for path, layer in layers.items():
        cuts = _cuts(kinds[path], layer, num_shards, least_size if wanted is None else math.inf, dims)
        kind = kinds[path]
        if isinstance(layer, MixtureOfExperts):
            # A mixture of experts splits itself, whatever is chosen for other layers.
            kind = "hidden" if cuts.dims else None
        elif kind in (None, "gathered") or plain_type(layer) is keras.layers.EinsumDense:
            kind = (kind or "gathered") if cuts.dims else None
        own = (path in passes, path in of_sequences - passes)
        choices[path] = Choice(path, layer, kind, *own, cuts.dims, cuts.reason)
    return Plan(choices, num_shards)


def _cuts(kind: str | None, layer: Any, num_shards: int, least_size: float, dims: dict[int, int]) -> Cuts:
    """Returns the cuts of single weights, for layers that are not split as a whole."""
    if not layer.built or num_shards == 1:
        return Cuts()
    if isinstance(layer, MixtureOfExperts):
        return hidden_cuts(layer, num_shards)
    if kind == "column" and plain_type(layer) is keras.layers.EinsumDense:
        return column_cuts(layer, num_shards, dims.get(id(layer._kernel)))
    if dims:
        return cuts_along(layer, dims) if kind in (None, "gathered") else Cuts()
    if kind == "gathered":
        return gathered_cuts(layer, num_shards)
    return gathered_cuts(layer, num_shards, least_size) if kind is None else Cuts()


def is_quantized(layer: Any) -> bool:
    """Returns True if a layer is quantized, or holds one that is."""
    return any(getattr(each, "quantization_mode", None) is not None for each in layer._flatten_layers())


def _choose(
    kinds: dict[str, str | None], layers: Mapping[str, Any], followers: Mapping[str, str], num_shards: int
) -> None:
    for path, layer in layers.items():
        # A model may hold layers that it never calls.
        if kinds[path] is not None or plain_type(layer) not in _KINDS_OF or not layer.built or is_quantized(layer):
            continue
        if issubclass(plain_type(layer), keras.layers.Embedding):
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
            last = _end_of_chain(path, layers, followers)
            if outputs % num_shards == 0:
                kinds[path] = "column"
                if last is not None and kinds[last] is None and is_elementwise(layer.activation):
                    kinds[last] = None if is_quantized(layers[last]) else "row"
            elif inputs % num_shards == 0:
                kinds[path] = "row"


def _take(kinds: dict[str, str | None], layers: Mapping[str, Any], wanted: Mapping[str, str | None]) -> None:
    unused = set(wanted)
    for path, layer in layers.items():
        expression = next((e for e in wanted if re.search(e, path)), None)
        if expression is None:
            continue
        unused.discard(expression)
        kind = wanted[expression]
        is_mixture = isinstance(layer, MixtureOfExperts)
        possible = ("hidden",) if is_mixture else (*_KINDS_OF.get(plain_type(layer), ()), "gathered")
        if kind not in possible and (kind is not None or is_mixture):
            raise ValueError(
                f"The plan asks for {kind!r} for {path!r}, a {_class_name(layer)}, which can be {list(possible)}. "
                f"Make the expression "
                f"{expression!r} narrower, or put one for this layer before it. Received: plan={dict(wanted)}."
            )
        kinds[path] = kind
    if unused:
        raise ValueError(
            f"Nothing in the model has a path in which {sorted(unused)} is found. Its layers: {list(layers)}. "
            f"Received: plan={dict(wanted)}."
        )


def _passing(
    kinds: Mapping[str, str | None], layers: Mapping[str, Any], followers: Mapping[str, str]
) -> frozenset[str]:
    """Returns the paths of layers whose output stays in pieces: from a column-parallel to its row-parallel layer."""
    found: set[str] = set()
    for path, kind in kinds.items():
        last = _end_of_chain(path, layers, followers) if kind == "column" else None
        if last is None or kinds[last] != "row" or not is_elementwise(layers[path].activation):
            continue
        while path != last:
            found.add(path)
            path = followers[path]
    return frozenset(found)


def _end_of_chain(path: str, layers: Mapping[str, Any], followers: Mapping[str, str]) -> str | None:
    """Returns the path of the layer of the same class that ends the channelwise chain after `path`; else None."""
    wanted = type(layers[path])
    while (path := followers.get(path, "")) and type(layers[path]) in CHANNELWISE:
        if not _lets_pieces_pass(layers[path]):
            return None
    return path if path and type(layers[path]) is wanted and getattr(layers[path], "groups", 1) == 1 else None


def _lets_pieces_pass(layer: Any) -> bool:
    if type(layer) is keras.layers.Activation:
        return is_elementwise(layer.activation)
    if type(layer) is keras.layers.BatchNormalization:
        return layer.axis in (-1, layer.input_spec.ndim - 1)
    if type(layer) is keras.layers.Dropout:
        return layer.noise_shape is None
    return getattr(layer, "data_format", "channels_last") == "channels_last"


def _class_name(layer: Any) -> str:
    """Returns the name of a layer's own class; its `__name__` may be that of its class in files."""
    return type(layer).__qualname__.rpartition(".")[2]


def _outputs(layer: Any) -> int:
    return int(layer.units if type(layer) is keras.layers.Dense else layer.filters)


def _inputs(layer: Any) -> int:
    return int(layer.kernel.shape[-2])
