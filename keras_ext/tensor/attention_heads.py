"""Finds the projections of attention layers of other libraries, and runs such a layer's ``call`` with some heads.

A library's attention is a layer of its own class that holds ``EinsumDense`` layers: some make heads of its inputs, one
takes the heads to the output. `head_trials` finds out whether each head is computed by itself between them.
"""

from __future__ import annotations

import functools
import inspect
import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.activations import is_elementwise
from keras_ext.tensor.custom_layers import plain_type, plain_view

#: Arguments of a call that may differ from their defaults; others are not tried.
CACHE, INDEX, MASK, TRAINING, VALUE = "cache", "cache_update_index", "attention_mask", "training", "value"


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


def found_by_equations(layer: Any, num_shards: int) -> Heads | None:
    """Returns the projections of a layer, by their equations, without a trial."""
    projections = {
        name: inner for name, inner in vars(layer).items() if isinstance(inner, keras.Layer) and _is_projection(inner)
    }
    into = {name: inner for name, inner in projections.items() if head_dim(inner) is not None and makes_heads(inner)}
    out = {name: inner for name, inner in projections.items() if name not in into and head_dim(inner) is not None}
    parameters = list(signature_of(layer.__class__).parameters.values())[1:]
    if len(out) != 1 or not into or not parameters:
        return None
    [(name_of_out, last)] = out.items()
    numbers = {each: _count(inner) for each, inner in into.items()}
    if any(number % num_shards for number in numbers.values()) or _count(last) % num_shards:
        return None
    for inner in into.values():
        *_, outputs = letters_of(inner)
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


def letters_of(layer: Any) -> tuple[str, str, str]:
    """Returns the letters of inputs, kernel and outputs in the equation of an ``EinsumDense``."""
    inputs, kernel, outputs = re.split(",|->", layer.equation.replace(" ", ""))
    return inputs, kernel, outputs


def makes_heads(layer: Any) -> bool:
    """Returns True if a projection of `head_dim` makes heads; False if it takes them."""
    inputs, kernel, outputs = letters_of(layer)
    return len([letter for letter in outputs if letter in kernel and letter not in inputs]) == 2


def head_dim(layer: Any) -> int | None:
    """Returns the dim of the kernel that counts heads; None for an ``EinsumDense`` that makes or takes no heads.

    The heads are the last dim but one of the output, as in "bqm,muh->bquh", or of the input, as in "bquh,uhm->bqm".
    """
    inputs, kernel, outputs = letters_of(layer)
    made = [letter for letter in outputs if letter in kernel and letter not in inputs]
    taken = [letter for letter in inputs if letter in kernel and letter not in outputs]
    if len(made) == 2 and len(taken) == 1 and outputs.endswith("".join(made)):
        return kernel.index(outputs[-2])
    if len(made) == 1 and len(taken) == 2 and inputs.endswith("".join(taken)):
        return kernel.index(inputs[-2])
    return None


def head_dims(layer: Any, heads: Heads) -> dict[int, int]:
    """Returns the dims of the kernels of all projections of an attention that count heads, by the kernel's id."""
    projections = [getattr(layer, name) for name in (*heads.into, heads.out)]
    return {id(each._kernel): dim for each in projections if (dim := head_dim(each)) is not None}


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
    computed: list[Any] = []

    def out(x: Any) -> Any:
        computed.append(x)
        return OUTPUT

    def refuse(*losses: Any) -> None:
        raise ValueError("Each shard would add the losses of a call.")

    counts = {name: getattr(layer, name) // num_shards for name in heads.counts}
    projections = {name: _Projection(function) for name, function in {**into, heads.out: out}.items()}
    return plain_view(layer, plain_class, add_loss=refuse, **counts, **projections), computed


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


@functools.cache
def signature_of(plain_class: Any) -> inspect.Signature:
    """Returns the signature of the ``call`` of a class."""
    return inspect.signature(plain_class.call)
