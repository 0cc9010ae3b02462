"""Kind rules for gradients of shards, where layers are split over the mesh axis "tensor".

Elementwise results of a shard's gradient are correct. An operation that looks at several of its elements, as a norm
does, sees only a part of the weight's gradient. A sum of such results over several shards, as in a norm over all
variables, is correct in a process that has all shards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from strategies.batches.row_kinds import Kind, Op

#: Ops that look at several elements of a tensor.
_REDUCING = frozenset(
    {"All", "Any", "ArgMax", "ArgMin", "Cumsum", "Einsum", "EuclideanNorm", "L2Loss", "Max", "Mean", "Min", "Prod"}
    | {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul", "Qr", "Sum", "Svd", "TopKV2"}
)
#: Ops that combine the elements of several tensors.
_JOINING = frozenset({"Add", "AddN", "AddV2", "ConcatV2", "Pack"})
#: Ops that do not look at the elements.
_OF_FORM = frozenset({"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})
_SHARDS = (Kind.SHARD, Kind.SHARD_APART)
_OF_SHARDS = (*_SHARDS, Kind.SHARD_NUMBER)


def is_of_shards(op: Op) -> bool:
    """Returns True if an input was computed from the gradient of a shard."""
    return any(kind in _OF_SHARDS for kind in op.inputs)


def shard_results(op: Op, otherwise: Callable[[Op], Kind]) -> Kind:
    """Returns the kind of a result that is computed from gradients of shards.

    Args:
        op: an operation for which :func:`is_of_shards` is true.
        otherwise: returns the kind of other operations' outputs.
    """
    if op.type in _OF_FORM:
        return Kind.SAME
    if any(kind is not Kind.SAME and kind not in _OF_SHARDS for kind in op.inputs):
        return otherwise(
            dataclasses.replace(op, inputs=[Kind.SAME if kind in _OF_SHARDS else kind for kind in op.inputs])
        )
    numbers = list(op.inputs).count(Kind.SHARD_NUMBER)
    if op.type in _REDUCING and any(kind in _SHARDS for kind in op.inputs):
        return Kind.OTHER if Kind.SHARD_APART in op.inputs else Kind.SHARD_NUMBER
    if numbers:
        is_joined = op.type in _JOINING and numbers > 1 and not any(kind in _SHARDS for kind in op.inputs)
        return Kind.SAME if is_joined else Kind.SHARD_NUMBER
    return Kind.SHARD_APART if Kind.SHARD_APART in op.inputs else Kind.SHARD
