"""Finds which numbers of a step are computed from some shards of weights, and differ from those of whole weights.

A program lists the variables of a model and their gradients. Where the devices of a replica share a weight, these are
shards. Elementwise results are correct, and so is what reduces the elements of all shards alike::

    norm of the gradient w = (a | b)      sqrt(sum(a * a) + sum(b * b))     right: linear until the sum is complete
                                          sqrt(sum(a * a)), mean(a)         a number of one shard
                                          sqrt(sum(a * a)) + sqrt(sum(b * b))     not linear before the sum

:func:`shard_part` follows tensors through operations, from shards and their gradients to where the program uses them.
"""

from __future__ import annotations

import math
from collections import Counter
from collections.abc import Collection, Sequence

from strategies.batches import row_names as names
from strategies.batches.row_kinds import Form, Kind, Op, ShardId, ShardPart

#: Ops that do not look at the elements.
_OF_SHAPES = frozenset({"OnesLike", "Rank", "Shape", "ShapeN", "ZerosLike"})
#: The first letters of the names of ops that bring numbers of other processes.
_COLLECTIVES = ("Collective", "EagerPyFunc", "Horovod", "Nccl", "PyFunc")
_QUOTIENTS = frozenset({"Div", "DivNoNan", "RealDiv"})
#: Ops that collect tensors, or give them another shape.
_MOVING = frozenset({"ConcatV2", "ExpandDims", "Pack", "Reshape", "Squeeze"})
#: Ops that take some of a tensor's elements.
_PARTIAL = frozenset({"Slice", "Split", "SplitV", "StridedSlice", "Unpack"})
_ELEMENTWISE = names.ELEMENTWISE | names.UNCHANGED | names.PRODUCTS | names.ADDITIONS | _QUOTIENTS | _MOVING
_ELEMENTWISE |= {"FloorDiv", "Maximum", "Minimum", "ReadVariableOp", "Select", "SelectV2"}
#: Ops that make a dense gradient of the slices of a sparse one.
_ELEMENTWISE |= {"ScatterNd", "UnsortedSegmentSum"}
#: Ops that reduce elements, whatever their order.
_REDUCING = {"Sum": Form.SUM, "L2Loss": Form.SUM, "Max": Form.MAX, "Any": Form.MAX, "Min": Form.MIN, "All": Form.MIN}
_REDUCING |= dict.fromkeys(("EuclideanNorm", "Mean", "Prod"), Form.OTHER)
#: Ops on sums, largest and smallest elements of shards, whose results are such numbers, too.
_KEEPING = names.UNCHANGED | _MOVING | _PARTIAL
_JOINING = {
    Form.SUM: _KEEPING | names.ADDITIONS | {"Sum"},
    Form.MAX: _KEEPING | {"Any", "LogicalOr", "Max", "Maximum"},
    Form.MIN: _KEEPING | {"All", "LogicalAnd", "Min", "Minimum"},
}


def shard_part(op: Op, kind: Kind) -> ShardPart | None:
    """Returns the shards from which an operation's output is computed; None if there are none, or all are.

    Args:
        op: the operation. The layouts of its inputs have their shards.
        kind: the kind of its output: activations are computed from all shards, by the layer.
    """
    if kind.has_rows or op.type in _OF_SHAPES or op.type.startswith(_COLLECTIVES):
        return None
    if op.type == "IdentityN":
        return op.layout(op.output).shards
    parts = {i: part for i, layout in enumerate(op.layouts) if (part := layout.shards) is not None}
    if not parts:
        return None
    shards = frozenset[ShardId]().union(*(part.shards for part in parts.values()))
    forms = {part.form for part in parts.values()}
    if forms == {Form.ELEMENTS}:
        if kind is Kind.UNKNOWN:
            # An activation or its gradient, after an operation that mixes rows.
            return None
        return _of_elements(op, list(parts.values()), shards)
    form = forms.pop() if len(forms) == 1 else Form.OTHER
    # A constant that is added to the sum of each shard is added more often than on one device.
    num_with_terms = sum(part.has_other_terms for part in parts.values())
    if num_with_terms > 1 or not _is_kept(op, form, parts):
        form = Form.OTHER
    if form is not Form.OTHER and op.output_rank == 0 and is_complete(shards):
        return None
    return ShardPart(shards, form, num_with_terms > 0 or _adds_other_terms(op, parts))


def is_complete(shards: Collection[ShardId]) -> bool:
    """Returns True if these are all shards of each of their weights."""
    counts = Counter((weight, count) for weight, _, count in shards)
    return all(found == count for (_, count), found in counts.items())


def joined_parts(one: ShardPart | None, other: ShardPart | None) -> ShardPart | None:
    """Returns the part of a value that has either of two, as after a conditional."""
    if one is None or other is None or one == other:
        return one or other
    is_alike = one.form is other.form and (one.shards == other.shards or one.form is Form.ELEMENTS)
    terms = one.has_other_terms or other.has_other_terms
    return ShardPart(one.shards | other.shards, one.form if is_alike else Form.OTHER, terms)


def _of_elements(op: Op, parts: Sequence[ShardPart], shards: frozenset[ShardId]) -> ShardPart | None:
    """Returns the part of the result of an operation on elements of shards."""
    complete = is_complete(shards)
    if op.type in _REDUCING or op.type == "Size":
        return None if complete else ShardPart(shards, _REDUCING.get(op.type, Form.SUM))
    if op.type == "TopKV2" and complete and op.output == 0:
        return None
    if op.type == "ConcatV2":
        # The shards of one weight, as its layer joins them, are the weight; of several, their order is another one.
        is_whole = complete and len({weight for weight, _, _ in shards}) == 1
        return None if is_whole else ShardPart(shards)
    if op.type in _PARTIAL:
        return ShardPart(shards, Form.ELEMENTS if complete or _keeps_all(op) else Form.OTHER)
    return ShardPart(shards, Form.ELEMENTS if op.type in _ELEMENTWISE and not _are_mixed(parts) else Form.OTHER)


def _keeps_all(op: Op) -> bool:
    """Returns True if the output of a slice has as many elements as its input, as after `x[..., None]`."""
    before, after = op.shape(0), op.output_shape
    if before is None or after is None:
        return False
    # An unknown size is not that of a weight.
    return math.prod(size or 0 for size in before) == math.prod(size or 0 for size in after)


def _are_mixed(parts: Sequence[ShardPart]) -> bool:
    """Returns True if different shards of one weight are combined, which have no elements in common."""
    of_weights: dict[int, set[frozenset[ShardId]]] = {}
    for part in parts:
        for weight in {weight for weight, _, _ in part.shards}:
            own = frozenset(each for each in part.shards if each[0] == weight)
            of_weights.setdefault(weight, set()).add(own)
    return any(len(found) > 1 for found in of_weights.values())


def _is_kept(op: Op, form: Form, parts: Collection[int]) -> bool:
    """Returns True if the result of an operation on numbers of a form is such a number again."""
    if op.type in _JOINING.get(form, ()):
        return True
    is_one = form is Form.SUM and len(parts) == 1
    return is_one and (op.type in names.PRODUCTS or (op.type in _QUOTIENTS and 0 in parts))


def _adds_other_terms(op: Op, parts: Collection[int]) -> bool:
    """Returns True if an operation adds or collects terms that are not computed from shards, other than zeros."""
    if op.type not in names.ADDITIONS and op.type != "Pack":
        return False
    constants = [op.constant(i) for i in range(len(op.inputs)) if i not in parts]
    return any(constant is None or (constant != 0).any() for constant in constants)
