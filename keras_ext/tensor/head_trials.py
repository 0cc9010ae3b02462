"""Tries whether the heads of an attention layer can be computed apart.

A layer may do something between its projections that no list knows of: biases by the number of a head, norms over all
heads. So its own ``call`` computes random numbers once with all heads, and once with each shard's heads; these must be
the same.
"""

from __future__ import annotations

import dataclasses
import logging
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
from keras import ops

from keras_ext.tensor.attention_heads import (
    CACHE,
    INDEX,
    MASK,
    TRAINING,
    Heads,
    at_heads,
    draws,
    found_by_equations,
    held_besides,
    letters_of,
    results_of,
    signature_of,
)
from keras_ext.tensor.custom_layers import description_of, is_custom
from strategies import layer_api

_logger = logging.getLogger(__name__)

# The arguments with which a call is tried, besides its inputs.
_TRIED = tuple(
    frozenset(each)
    # A cache that is given without an index is used as it is, as that of an encoder's outputs.
    for each in ((), (MASK,), (CACHE,), (MASK, CACHE), (CACHE, INDEX), (MASK, CACHE, INDEX))
)
_ROWS, _POSITIONS, _CACHED = 2, 3, 5


def heads_of(layer: Any, num_shards: int) -> Heads | None:
    """Returns the heads of an attention layer whose shards can compute them apart; None for any other layer.

    Args:
        layer: a layer of any class.
        num_shards: the size of the mesh axis "tensor".
    """
    heads = found_by_equations(layer, num_shards) if num_shards > 1 and is_custom(layer) and layer.built else None
    if heads is None:
        return None
    # Layers that compute alike are tried once.
    key = (num_shards, heads, description_of(layer))
    if key not in _known:
        tried = frozenset(each for each in _TRIED if _is_apart(layer, heads, num_shards, each))
        is_useful = any(CACHE not in each for each in tried)
        _known[key] = dataclasses.replace(heads, tried=tried) if is_useful else None
    return _known[key]


#: The results of trials, by all that they depend on.
_known: dict[Any, Heads | None] = {}


def _is_apart(layer: Any, heads: Heads, num_shards: int, given: frozenset[str]) -> bool:
    """Returns True if each shard's heads, computed apart, are those of the whole layer, for random numbers."""
    if not given <= set(signature_of(layer.__class__).parameters):
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
        if TRAINING in signature_of(layer.__class__).parameters:
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
    inputs, kernel, _ = letters_of(first)
    return int(first._kernel.shape[kernel.index(next(letter for letter in inputs if letter in kernel))])


def _made_size(layer: Any, takes: bool = False) -> tuple[int, int]:
    """Returns the number of heads, and the size of a head, that a projection makes, or takes."""
    inputs, kernel, outputs = letters_of(layer)
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
