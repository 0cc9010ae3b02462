"""Attention layers of other libraries that are split by heads: each shard runs the layer's own call with its heads."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
from keras import ops

from keras_ext.tensor.attention_heads import (
    CACHE,
    INDEX,
    MASK,
    TRAINING,
    Heads,
    at_heads,
    draws,
    held_besides,
    results_of,
    signature_of,
)
from keras_ext.tensor.gathered import GatheredWeights
from keras_ext.tensor.split_tensor import SplitTensor
from strategies import layer_api


class HeadParallel(GatheredWeights):
    """Mix-in before the class of an attention layer that holds ``EinsumDense`` projections to and from heads.

    Each shard projects to its own heads, attends with them and projects back; the outputs are added up, by one
    all-reduce forward and one backward, as in Megatron-LM. The projections hold the shards of their kernels.

    A call with other arguments than those that were tried, or with dropout, whose random numbers would differ, is
    computed as a whole: the projections gather their outputs.

    If each process has one shard, the cache of keys and values that a call returns has the heads of this process' shard
    only, and so may the one that it is given. Otherwise calls with a cache are computed as a whole.

    Source: Shoeybi et al., arXiv:1909.08053, section 3.
    """

    #: The heads of the plain layer.
    heads: Any = None

    def call(self, *args: Any, **kwargs: Any) -> Any:
        """Computes like the plain layer; arguments and results are the plain layer's, but for the cache.

        Raises:
            ValueError: a cache has the heads of this process' shard only, and the call was not tried.
        """
        _, *bound = signature_of(self.plain_class).bind(self, *args, **kwargs).arguments.items()
        given = {name: value for name, value in bound if value is not None}
        apart = self._arguments_apart(given)
        if apart is not None:
            return self._by_heads(apart)
        self._refuse_part_of_cache(given)
        return super().call(*args, **kwargs)

    def _refuse_part_of_cache(self, given: Mapping[str, Any]) -> None:
        cache = given.get(CACHE)
        if cache is None or not self.splits_cache or cache.shape[-2] == self._cached_heads():
            return
        raise ValueError(
            f"The attention {self.name!r} is split by heads, and the cache that it is given has {cache.shape[-2]} of "
            f"{self._cached_heads()} heads, those of this process. A call with these arguments is computed with all "
            f"heads. Leave the layer out of the plan: parallelize(model, plan=...). Received: {sorted(given)}."
        )

    def _arguments_apart(self, given: Mapping[str, Any]) -> dict[str, Any] | None:
        """Returns the arguments of a call that are not their defaults, if its heads can be computed apart."""
        signature, heads, given = signature_of(self.plain_class), self.heads, dict(given)
        training = given.get(TRAINING)
        for name, value in list(given.items()):
            is_default = isinstance(value, (bool, int, str)) and value == signature.parameters[name].default
            if is_default and not (name == INDEX and CACHE in given):
                del given[name]
        others = frozenset(given) - {*heads.inputs, TRAINING}
        is_tried = others in heads.tried and set(heads.inputs) <= given.keys()
        if not is_tried or (CACHE in others and not self.splits_cache) or not _is_mask(given.get(MASK)):
            return None
        projections = [getattr(self, name) for name in (*heads.into, heads.out)]
        if any("call" in vars(each) for each in projections):
            # Their calls are replaced, as by `rematerialize`.
            return None
        may_draw = draws(self) and (training or TRAINING not in signature.parameters)
        return None if may_draw else given

    @property
    def splits_cache(self) -> bool:
        """True if caches have the heads of one shard only."""
        shards = self._placed()
        return self.heads.splits_cache and shards.parts.num_processes("tensor") == shards.count

    def _by_heads(self, given: dict[str, Any]) -> Any:
        shards, heads = self._placed(), self.heads
        tensors = [given.pop(name) for name in heads.inputs]
        # A tensor that is passed twice is copied to the shards once, and its gradients are summed once.
        distinct = {id(tensor): tensor for tensor in tensors}
        which = [list(distinct).index(id(tensor)) for tensor in tensors]
        copies = [self.copies_of(tensor) for tensor in distinct.values()]
        training = {TRAINING: given.pop(TRAINING)} if TRAINING in given else {}
        cache = self._own_cache(given.pop(CACHE)) if CACHE in given else None
        projections = [getattr(self, name) for name in heads.into]
        weights, functions = zip(*(layer.at_shards() for layer in projections), strict=True)
        others = self._other_weights()
        copies_of_others = [shards.copy(each) for each in others]

        def attend(copies: list[Any], given: dict[str, Any], weights: list[list[Any]], others_here: list[Any]) -> Any:
            into = {
                name: _projected(layer, function, own)
                for name, layer, function, own in zip(heads.into, projections, functions, weights, strict=True)
            }
            inputs = [copies[each] for each in which]
            view, computed = at_heads(self, self.plain_class, heads, shards.count, into)
            if not others:
                return results_of(view.call(*inputs, **given, **training), computed)
            with keras.StatelessScope(state_mapping=list(zip(others, others_here, strict=True))):
                return results_of(view.call(*inputs, **given, **training), computed)

        made = []
        for own, index in enumerate(shards.owned):
            here = [
                [each[own] for each in copies],
                given if cache is None else {**given, CACHE: cache},
                [each[own] for each in weights],
                [each[own] for each in copies_of_others],
            ]
            made.append(shards.run_nested(index, attend, here))
        contexts = [each[0] for each in made]
        output = getattr(self, heads.out).call_with_pieces(SplitTensor(contexts, -2, shards))
        # If another process has the layer, this one traces all shards for their shapes.
        return (output, made[0][1]) if len(made[0]) > 1 else output

    def _own_cache(self, cache: Any) -> Any:
        """Returns the part of a cache that has the heads of this process' shard."""
        number = self._cached_heads()
        if cache.shape[-2] != number:
            return cache
        shards = self._placed()
        return ops.split(cache, shards.count, axis=-2)[shards.owned[0]]

    def _cached_heads(self) -> int:
        """Returns the number of heads of a whole cache."""
        kernels = [getattr(self, name)._kernel for name in self.heads.into]
        return min(int(kernel.shape[kernel.dim]) for kernel in kernels)

    def _other_weights(self) -> list[Any]:
        """Returns the trained weights of the layer that are in none of the projections."""
        held = held_besides(self, [getattr(self, name) for name in (*self.heads.into, self.heads.out)])
        return [weight for inner in held for weight in inner._trainable_variables]


def _is_mask(mask: Any) -> bool:
    """Returns True for a mask that is the same for all heads, or None."""
    return mask is None or (len(mask.shape) == 3 and not keras.backend.is_float_dtype(mask.dtype))


def _projected(layer: Any, function: Callable[..., Any], weights: list[Any]) -> Callable[[Any], Any]:
    return lambda x: function(layer._as_input(x), *weights)


@functools.cache
def head_parallel_class(plain_class: Any, heads: Heads) -> Any:
    """Returns the class of attention layers like those of `plain_class` that are split by heads."""
    names = {"__module__": plain_class.__module__, "__qualname__": f"HeadParallel{plain_class.__qualname__}"}
    made: Any = type(
        plain_class.__name__, (HeadParallel, plain_class), {"plain_class": plain_class, "heads": heads, **names}
    )
    return layer_api.saved_as(plain_class)(made)
