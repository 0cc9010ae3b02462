"""Rules of gradients of shards, where layers are split over the mesh axis "tensor": a norm of one is not the weight's.

What is computed number by number of a shard's gradient is right. What looks at several of its numbers, as a norm does,
sees a part of the weight's gradient. A sum of such numbers over several shards, as a norm over all variables has it, is
right in a process that has all shards.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Callable

from strategies.batches.row_kinds import Kind, Op

#: Look at several numbers of a tensor.
_REDUCING = frozenset(
    {"All", "Any", "ArgMax", "ArgMin", "Cumsum", "Einsum", "EuclideanNorm", "L2Loss", "Max", "Mean", "Min", "Prod"}
    | {"BatchMatMul", "BatchMatMulV2", "BatchMatMulV3", "MatMul", "Qr", "Sum", "Svd", "TopKV2"}
)
#: Join numbers of several tensors.
_JOINING = frozenset({"Add", "AddN", "AddV2", "ConcatV2", "Pack"})
#: Do not look at the numbers.
_OF_FORM = frozenset({"OnesLike", "Rank", "Shape", "ShapeN", "Size", "ZerosLike"})
_SHARDS = (Kind.SHARD, Kind.SHARD_APART)
_OF_SHARDS = (*_SHARDS, Kind.SHARD_NUMBER)


def is_of_shards(op: Op) -> bool:
    """True if an input is made of the gradient of a shard."""
    return any(kind in _OF_SHARDS for kind in op.inputs)


def of_shards(op: Op, otherwise: Callable[[Op], Kind]) -> Kind:
    """Returns the kind of what is made of gradients of shards.

    Args:
        op: of whose inputs :func:`is_of_shards` is true.
        otherwise: the kind of other operations.
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
