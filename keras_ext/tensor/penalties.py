"""Constraints and regularizers of whole weights, applied to their shards."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
from keras import ops

from keras_ext.keras_versions import ConstraintOf, RegularizerOf
from keras_ext.tensor.mappings import Shards
from strategies import layer_api

# Sums over elements: the penalty of a weight is the sum of its shards' penalties.
_ADDITIVE = (keras.regularizers.L1, keras.regularizers.L2, keras.regularizers.L1L2)
# These scale a weight by its norms along `axis`, and depend on nothing else.
_BY_NORM = (keras.constraints.MaxNorm, keras.constraints.MinMaxNorm, keras.constraints.UnitNorm)


def penalties_of_shards(weight: layer_api.SplitWeight, shards: Shards, kind: str, value: Any) -> list[Any]:
    """Returns, for each shard of `weight`, its part of a constraint or regularizer (`kind`) of the whole weight."""
    return (constraints_of_shards if kind == "constraint" else regularizers_of_shards)(value, weight, shards)


def regularizers_of_shards(regularizer: Any, weight: layer_api.SplitWeight, shards: Shards) -> list[Any]:
    """Returns a regularizer for each shard of `weight`; they add up to `regularizer` of the whole weight.

    Keras' regularizers that are sums over elements run on the shards' devices. Any other regularizer needs the whole
    weight, which is gathered for it.

    Where shards belong to several processes, the first shard's regularizer returns the sum, on all processes.
    """
    regularizer = keras.regularizers.get(regularizer)
    if regularizer is None or shards.count == 1:
        return [regularizer] * shards.count
    return [RegularizerOf(function) for function in _regularizers(regularizer, weight, shards)]


def _regularizers(regularizer: Any, weight: layer_api.SplitWeight, shards: Shards) -> list[Callable[[Any], Any]]:
    """Returns the function of each shard."""
    if type(regularizer) in _ADDITIVE:
        if shards.between is None:
            return [_on_shard(regularizer, index, shards) for index in range(shards.count)]
        return [
            lambda _: shards.reduce(shards.run_each(regularizer, shards.select_owned(weight.shards))),
            *[_nothing] * (shards.count - 1),
        ]

    def penalize_whole(_: Any) -> Any:
        return regularizer(shards.gather(_values(weight, shards), weight.dim, weight.shape[weight.dim]))

    return [penalize_whole] + [_nothing] * (shards.count - 1)


def constraints_of_shards(constraint: Any, weight: layer_api.SplitWeight, shards: Shards) -> list[Any]:
    """Returns a constraint for each shard of `weight`; together they apply `constraint` to the whole weight.

    Keras' own constraints run on the shards' devices, and exchange at most norms. Any other constraint needs the whole
    weight, which is gathered for it.
    """
    constraint = keras.constraints.get(constraint)
    if constraint is None or shards.count == 1:
        return [constraint] * shards.count
    made = _constraints(constraint, weight, shards)
    return [ConstraintOf(made.get(index, _zeros)) for index in range(shards.count)]


def _constraints(constraint: Any, weight: layer_api.SplitWeight, shards: Shards) -> dict[int, Callable[[Any], Any]]:
    """Returns the functions of the owned shards, by the shard's number."""
    apart = {index: _on_shard(constraint, index, shards) for index in shards.owned}
    if type(constraint) is keras.constraints.NonNeg:
        return apart
    if type(constraint) in _BY_NORM:
        axes = constraint.axis if isinstance(constraint.axis, (list, tuple)) else (constraint.axis,)
        if weight.dim not in [axis % weight.ndim for axis in axes]:
            return apart
        together = _Together(lambda: _by_norm(constraint, weight, shards))
    else:
        together = _Together(lambda: _by_whole(constraint, weight, shards))
    return {index: together.constrain_shard(position) for position, index in enumerate(shards.owned)}


class _Together:
    """Computes the new values of all owned shards when the first one is requested, before any shard is changed."""

    def __init__(self, make: Callable[[], list[Any]]) -> None:
        self._make = make
        self._made: list[Any] = []

    def constrain_shard(self, position: int) -> Callable[[Any], Any]:
        def constrained(_: Any) -> Any:
            if position == 0:
                self._made = self._make()
            return self._made[position]

        return constrained


def _by_norm(constraint: Any, weight: layer_api.SplitWeight, shards: Shards) -> list[Any]:
    """Applies a constraint to each shard, joined with one slice whose norm is that of all other shards.

    The constraint thus sees the norms of the whole weight.
    """
    values = _values(weight, shards)
    own = shards.run_each(lambda v: ops.sum(ops.square(v), axis=weight.dim, keepdims=True), values)
    squares = [square for (square,) in shards.gather_all([[square] for square in own])]

    def constrained(value: Any, *others: Any) -> Any:
        rest = ops.sqrt(sum(others[1:], others[0]))
        beside = constraint(ops.concatenate([value, rest], axis=weight.dim))
        return ops.take(beside, ops.arange(value.shape[weight.dim]), axis=weight.dim)

    return [
        shards.run(i, constrained, value, *squares[:i], *squares[i + 1 :])
        for i, value in zip(shards.owned, values, strict=True)
    ]


def _by_whole(constraint: Any, weight: layer_api.SplitWeight, shards: Shards) -> list[Any]:
    whole = constraint(shards.gather(_values(weight, shards), weight.dim, weight.shape[weight.dim]))
    return shards.scatter(whole, weight.dim, weight.sizes)


def _values(weight: layer_api.SplitWeight, shards: Shards) -> list[Any]:
    return [ops.convert_to_tensor(shard) for shard in shards.select_owned(weight.shards)]


def _on_shard(function: Any, index: int, shards: Shards) -> Callable[[Any], Any]:
    return lambda value: shards.run(index, function, value)


def _zeros(value: Any) -> Any:
    """Returns zeros, for a variable of another process, which ignores assigned values."""
    return ops.zeros(value.shape, dtype=value.dtype)


def _nothing(value: Any) -> Any:
    return ops.zeros((), dtype=value.dtype)
