"""Finds the projections of attention layers of other libraries, and checks that their heads can be computed apart.

A library's attention is a layer of its own class that holds ``EinsumDense`` layers: some make heads of its inputs, one
takes the heads to the output. Between them each head is computed by itself, unless the layer does something that no
list knows of: biases by the number of a head, norms over all heads. So this is not looked up, it is tried: the layer's
own ``call`` computes random numbers once with all heads, and once with each shard's heads; these must be the same.
"""

from __future__ import annotations

import dataclasses
import functools
import inspect
import logging
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ext.tensor.activations import is_elementwise
from keras_ext.tensor.custom_layers import description_of, is_custom, plain_type
from strategies import layer_api

_logger = logging.getLogger(__name__)

#: Arguments of a call that may differ from their defaults; others are not tried.
CACHE, INDEX, MASK, TRAINING, VALUE = "cache", "cache_update_index", "attention_mask", "training", "value"
# The arguments with which a call is tried, besides its inputs.
_TRIED = tuple(
    frozenset(each)
    # A cache that is given without an index is used as it is, as that of an encoder's outputs.
    for each in ((), (MASK,), (CACHE,), (MASK, CACHE), (CACHE, INDEX), (MASK, CACHE, INDEX))
)
_ROWS, _POSITIONS, _CACHED = 2, 3, 5


@dataclass(frozen=True)
class Heads:
    """The heads of an attention layer of another library.

    Attributes:
        into: the attributes that hold the projections to heads.
        out: the attribute that holds the projection from heads.
        counts: the attributes that hold numbers of heads.
        inputs: the arguments that are tensors of positions, such as the hidden states.
        tried: the other arguments that may be given, in each combination that was tried.
        splits_cache: False if a cache has all heads, because other layers of the model need it so.
    """

    into: tuple[str, ...]
    out: str
    counts: tuple[str, ...]
    inputs: tuple[str, ...]
    tried: frozenset[frozenset[str]] = frozenset()
    splits_cache: bool = True

    @property
    def takes_cache(self) -> bool:
        """True if the keys and values of earlier positions may be given, for the heads of one shard."""
        return any({CACHE, INDEX} <= each for each in self.tried)


def heads_of(layer: Any, num_shards: int) -> Heads | None:
    """Returns the heads of an attention layer whose shards can compute them apart; None for any other layer.

    Args:
        layer: a layer of any class.
        num_shards: the size of the mesh axis "tensor".
    """
    heads = _found(layer, num_shards) if num_shards > 1 and is_custom(layer) and layer.built else None
    if heads is None:
        return None
    # Layers that compute alike are tried once.
    key = (num_shards, heads, description_of(layer))
    if key not in _known:
        tried = frozenset(each for each in _TRIED if _is_apart(layer, heads, num_shards, each))
        is_useful = any(CACHE not in each for each in tried)
        _known[key] = dataclasses.replace(heads, tried=tried) if is_useful else None
    return _known[key]


#: What was tried, by what it depends on.
_known: dict[Any, Heads | None] = {}


def _found(layer: Any, num_shards: int) -> Heads | None:
    """Returns the projections of a layer, by their equations, without a trial."""
    projections = {
        name: inner for name, inner in vars(layer).items() if isinstance(inner, keras.Layer) and _is_projection(inner)
    }
    into = {name: inner for name, inner in projections.items() if head_dim(inner) is not None and makes_heads(inner)}
    out = {name: inner for name, inner in projections.items() if name not in into and head_dim(inner) is not None}
    parameters = list(inspect.signature(type(layer).call).parameters.values())[1:]
    if len(out) != 1 or not into or not parameters:
        return None
    [(name_of_out, last)] = out.items()
    numbers = {each: _count(inner) for each, inner in into.items()}
    if any(number % num_shards for number in numbers.values()) or _count(last) % num_shards:
        return None
    for inner in into.values():
        *_, outputs = _letters(inner)
        if inner.bias is not None and outputs[-2] not in inner.bias_axes:
            return None
    # Keras losses read the logits from an attribute of a sigmoid's output.
    if any(
        not is_elementwise(inner.activation) or inner.activation is keras.activations.sigmoid for inner in into.values()
    ):
        return None
    if any(inner.activity_regularizer is not None for inner in projections.values()):
        return None
    if any(inner._non_trainable_variables for inner in held_besides(layer, projections.values())):
        # Each shard would write them.
        return None
    required = [each.name for each in parameters[1:] if each.default is inspect.Parameter.empty]
    if not set(required) <= {VALUE}:
        return None
    counts = {
        name
        for name, value in vars(layer).items()
        if re.search(r"heads$", name) and type(value) is int and value in {*numbers.values(), _count(last)}
    }
    return Heads(tuple(into), name_of_out, tuple(sorted(counts)), (parameters[0].name, *required))


def _is_projection(layer: Any) -> bool:
    return plain_type(layer) is keras.layers.EinsumDense and layer.built


def _letters(layer: Any) -> tuple[str, str, str]:
    """Returns the letters of inputs, kernel and outputs in the equation of an ``EinsumDense``."""
    inputs, kernel, outputs = re.split(",|->", layer.equation.replace(" ", ""))
    return inputs, kernel, outputs


def makes_heads(layer: Any) -> bool:
    """Returns True if a projection of `head_dim` makes heads; False if it takes them."""
    inputs, kernel, outputs = _letters(layer)
    return len([letter for letter in outputs if letter in kernel and letter not in inputs]) == 2


def head_dim(layer: Any) -> int | None:
    """Returns the dim of the kernel that counts heads; None for an ``EinsumDense`` that makes or takes no heads.

    The heads are the last dim but one of the output, as in "bqm,muh->bquh", or of the input, as in "bquh,uhm->bqm".
    """
    inputs, kernel, outputs = _letters(layer)
    made = [letter for letter in outputs if letter in kernel and letter not in inputs]
    taken = [letter for letter in inputs if letter in kernel and letter not in outputs]
    if len(made) == 2 and len(taken) == 1 and outputs.endswith("".join(made)):
        return kernel.index(outputs[-2])
    if len(made) == 1 and len(taken) == 2 and inputs.endswith("".join(taken)):
        return kernel.index(inputs[-2])
    return None


def _count(layer: Any) -> int:
    return int(layer._kernel.shape[head_dim(layer)])


def held_besides(layer: Any, projections: Iterable[Any]) -> list[Any]:
    """Returns an attention layer, and all layers inside it but its projections."""
    ids = set(map(id, projections))
    return [inner for inner in layer._flatten_layers() if id(inner) not in ids]


def draws(layer: Any) -> bool:
    """Returns True if a layer, or a layer inside it, draws random numbers in training."""
    return any(inner._seed_generators for inner in layer._flatten_layers())


def at_heads(
    layer: Any, plain_class: Any, heads: Heads, num_shards: int, into: Mapping[str, Callable[[Any], Any]]
) -> tuple[Any, list[Any]]:
    """Returns a view of an attention layer that has one shard's heads, and a list that gets the heads it computes.

    Args:
        layer: the layer.
        plain_class: the class of the view, whose ``call`` can then be called once.
        heads: of the layer.
        num_shards: over which its heads are split; 1 for a view that has all heads.
        into: the projections to heads, by attribute.
    """
    view = object.__new__(plain_class)
    # The view has the plain class' methods, not those that Keras, or a caller of this layer, has wrapped.
    own = ("build", "quantize", "call", "quantized_call")
    vars(view).update({name: value for name, value in vars(layer).items() if name not in own})
    vars(view).update({name: getattr(layer, name) // num_shards for name in heads.counts})
    computed: list[Any] = []

    def out(x: Any) -> Any:
        computed.append(x)
        return OUTPUT

    def refuse(*losses: Any) -> None:
        raise ValueError("Each shard would add the losses of a call.")

    vars(view)["add_loss"] = refuse
    vars(view).update({name: _Projection(function) for name, function in into.items()})
    vars(view)[heads.out] = _Projection(out)
    return view, computed


class _Output:
    """Stands for the output of an attention layer, which is computed after its call."""


#: Returned by the projection from heads of `at_heads`.
OUTPUT = _Output()


class _Projection:
    """A projection in a view: can be called, and has no weights to read."""

    def __init__(self, function: Callable[[Any], Any]) -> None:
        self._function = function

    def __call__(self, x: Any, *args: Any, **kwargs: Any) -> Any:
        """Calls the function.

        Raises:
            ValueError: the projection is given other arguments.
        """
        if args or kwargs:
            raise ValueError(f"A projection of heads takes one tensor. Received: {args}, {kwargs}.")
        return self._function(x)


def results_of(made: Any, computed: Sequence[Any]) -> list[Any]:
    """Returns the heads that a call of `at_heads` computed, and the new cache if it returned one.

    Raises:
        ValueError: the call returned something else.
    """
    cache: list[Any] = []
    if isinstance(made, tuple) and len(made) == 2:
        made, *cache = made
    if made is not OUTPUT or len(computed) != 1 or not all(map(ops.is_tensor, cache)):
        raise ValueError(f"The output of an attention is that of its last projection. Received: {made!r}.")
    return [*computed, *cache]


def _is_apart(layer: Any, heads: Heads, num_shards: int, given: frozenset[str]) -> bool:
    """Returns True if each shard's heads, computed apart, are those of the whole layer, for random numbers."""
    if not given <= set(inspect.signature(type(layer).call).parameters):
        return False
    # Each head is computed by the same ops. If it is rounded in another way, the layer is computed as a whole.
    precision = 3e-6 if keras.backend.standardize_dtype(layer.compute_dtype) == "float32" else 4e-3
    # Generation begins with all positions, and goes on with one.
    trials = [(_CACHED, 0, False), (1, _CACHED - 2, False)]
    if CACHE not in given:
        # Layers that draw random numbers are not split in training.
        trials = [(_POSITIONS, 0, False), *([] if draws(layer) else [(_POSITIONS, 0, True)])]
    try:
        for length, index, training in trials:
            trial = _Trial(layer, heads, given, length, index, training)
            whole, parts = trial.results(1, 0), [trial.results(num_shards, i) for i in range(num_shards)]
            for all_heads, *own in zip(whole, *parts, strict=True):
                joined = np.concatenate(own, axis=-2)
                if joined.shape != all_heads.shape or not np.allclose(joined, all_heads, precision, precision):
                    return False
    # A library's class may raise any error for numbers of heads that it was not made for.
    except Exception as error:
        _logger.debug("The heads of %r are not split for %s: %s", layer.name, sorted(given), error)
        return False
    return True


class _Trial:
    """One set of random numbers, in place of the projections' outputs, of weights, and of arguments."""

    def __init__(
        self, layer: Any, heads: Heads, given: frozenset[str], length: int, index: int, training: bool
    ) -> None:
        self._layer, self._heads = layer, heads
        self._random = np.random.default_rng(0)
        size = _num_channels(layer, heads)
        length_of_values = _CACHED if CACHE in given else length
        self._inputs = [self._normal(_ROWS, length, size) for _ in heads.inputs]
        self._arguments: dict[str, Any] = {}
        if MASK in given:
            mask = self._random.integers(0, 2, (_ROWS, length, length_of_values)).astype(bool)
            mask[..., 0] = True
            self._arguments[MASK] = ops.convert_to_tensor(mask)
        if INDEX in given:
            self._arguments[INDEX] = index
        if TRAINING in inspect.signature(type(layer).call).parameters:
            self._arguments[TRAINING] = training
        self._made = {name: self._normal(_ROWS, length, *_made_size(getattr(layer, name))) for name in heads.into}
        self._cache = None
        if CACHE in given:
            # The layers of a cache have the shape of keys and values; these may have fewer heads than queries.
            fewest = min((_made_size(getattr(layer, name)) for name in heads.into), key=lambda each: each[0])
            self._cache = self._normal(_ROWS, 2, _CACHED, fewest[0], _made_size(getattr(layer, heads.out), True)[1])
        held = held_besides(layer, [getattr(layer, name) for name in (*heads.into, heads.out)])
        weights = {id(weight): weight for inner in held for weight in inner._trainable_variables}
        self._weights = [(w, ops.cast(self._random.uniform(0.5, 1.5, w.shape), w.dtype)) for w in weights.values()]

    def _normal(self, *shape: int) -> Any:
        return ops.convert_to_tensor(self._random.standard_normal(shape), dtype=self._layer.compute_dtype)

    def results(self, num_shards: int, shard: int) -> list[np.ndarray]:
        """Returns the heads, and the cache if one is given, that one shard computes."""

        def own(tensor: Any) -> Any:
            return ops.split(tensor, num_shards, axis=-2)[shard]

        def projection(name: str) -> Callable[[Any], Any]:
            return lambda x: own(self._made[name])

        into = {name: projection(name) for name in self._heads.into}
        view, computed = at_heads(self._layer, type(self._layer), self._heads, num_shards, into)
        cache = {} if self._cache is None else {CACHE: own(self._cache)}
        with keras.StatelessScope(state_mapping=self._weights) as scope:
            before = [scope.get_current_value(weight) for weight, _ in self._weights]
            found, reads_others = layer_api.computed_now(
                lambda: results_of(view.call(*self._inputs, **self._arguments, **cache), computed)
            )
            after = [scope.get_current_value(weight) for weight, _ in self._weights]
        if reads_others:
            raise ValueError("The call reads a variable that Keras does not know to be one of the layer.")
        if len(scope.state_mapping) > len(before) or any(a is not b for a, b in zip(before, after, strict=True)):
            raise ValueError("The call writes to a variable.")
        if len(found) != 1 + len(cache):
            raise ValueError("The cache is not returned.")
        return [ops.convert_to_numpy(ops.cast(each, "float32")) for each in found]


def _num_channels(layer: Any, heads: Heads) -> int:
    """Returns the number of channels of the inputs."""
    first = getattr(layer, heads.into[0])
    inputs, kernel, _ = _letters(first)
    return int(first._kernel.shape[kernel.index(next(letter for letter in inputs if letter in kernel))])


def _made_size(layer: Any, takes: bool = False) -> tuple[int, int]:
    """Returns the number of heads, and the size of a head, that a projection makes, or takes."""
    inputs, kernel, outputs = _letters(layer)
    letters = inputs[-2:] if takes else outputs[-2:]
    number, size = (int(layer._kernel.shape[kernel.index(letter)]) for letter in letters)
    return number, size


def attentions_in(layers: Mapping[str, Any], num_shards: int) -> dict[str, Heads]:
    """Returns the heads of the attention layers whose shards can compute them apart, by path.

    The caches of all layers of a model have one shape: they are split if each layer that has one can split it.
    """
    found = {path: heads for path, layer in layers.items() if (heads := heads_of(layer, num_shards)) is not None}
    splits_cache = all(
        path in found and found[path].takes_cache
        for path, layer in layers.items()
        if is_custom(layer) and _takes_cache(layer) and not _holds_attention(layer)
    )
    return {path: dataclasses.replace(heads, splits_cache=splits_cache) for path, heads in found.items()}


def _holds_attention(layer: Any) -> bool:
    """Returns True for a block that passes its cache to a layer inside it."""
    inside = layer._flatten_layers(include_self=False)
    return any(map(_takes_cache, inside))


def _takes_cache(layer: Any) -> bool:
    return CACHE in signature_of(layer.__class__).parameters


@functools.cache
def signature_of(plain_class: Any) -> inspect.Signature:
    """Returns the signature of the ``call`` of a class."""
    return inspect.signature(plain_class.call)
