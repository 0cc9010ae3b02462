"""Kind rules for operations along a dimension (scans, flips, shifts, sorting) and for random numbers."""

from __future__ import annotations

import dataclasses
from collections.abc import Callable, Collection

from strategies.batches.row_arithmetic import reduced_dims
from strategies.batches.row_kinds import Kind, Op, along, linear, mixing, row_wise

_LINEAR = ("Conv2D", "Conv3D", "DepthwiseConv2dNative")


def last_dims(number: int) -> Callable[[Op], Kind]:
    """Returns the rule of operations along the last `number` dimensions."""

    def rule(op: Op) -> Kind:
        across = any(
            kind.has_rows and (from_end := op.axis_from_end(i)) is not None and from_end >= -number
            for i, kind in enumerate(op.inputs)
        )
        return mixing(op) if across else row_wise(op)

    return rule


def by_row(op: Op) -> Kind:
    """Returns the kind of the output of an op that computes row by row along the first dimension of each input."""
    if any(kind.has_rows and op.layout(i).axis > 0 for i, kind in enumerate(op.inputs)):
        return mixing(op)
    return row_wise(dataclasses.replace(op, input_shapes=()), is_linear=op.type in _LINEAR)


def _given(op: Op) -> Collection[int] | None:
    return op.numbers(1)


def _flagged(op: Op) -> Collection[int] | None:
    flags = op.numbers(1)
    return None if flags is None else [i for i, flag in enumerate(flags) if flag]


def _rolled(op: Op) -> Collection[int] | None:
    return op.numbers(2)


def _padded(op: Op) -> Collection[int] | None:
    amounts = op.constant(1)
    # Paddings that are computed are assumed to pad lengths, not rows.
    return () if amounts is None else [i for i, each in enumerate(amounts) if each.any()]


def _by_attribute(op: Op) -> Collection[int] | None:
    return [int(op.attribute("seq_dim") or 0)]


scan = along(_given, linear)
reverse = along(_given, linear)
reverse_by_flags = along(_flagged, linear)
reverse_sequence = along(_by_attribute)
roll = along(_rolled, linear)
pad = along(_padded, linear)


def position_of_extreme(op: Op) -> Kind:
    """Returns the kind of the position of the largest or smallest element along a dimension."""
    kind, dims = op.inputs[0], reduced_dims(op)
    if not kind.has_rows or kind is Kind.PAIRS:
        return mixing(op)
    if op.output_rank != 0 and (dims is None or op.layout(0).axis not in dims):
        return Kind.OTHER if dims is None else row_wise(op)
    return Kind.OTHER


def shuffle(op: Op) -> Kind:
    """Returns the kind of a tensor whose items of the first dimension were shuffled."""
    return mixing(op) if op.inputs[0].has_rows and op.layout(0).axis == 0 else _drawn(op, op.inputs)


def draw(op: Op) -> Kind:
    """Returns the kind of random numbers, which are drawn for each row or in a shape without rows."""
    kinds = set(op.inputs)
    is_by_seed = op.type.startswith("Stateless")
    for_rows = any(kind.has_rows or kind in (Kind.SHAPE, Kind.COUNT) for kind in kinds)
    for_rows = for_rows or (bool(op.output_rank) and op.first_size in op.num_rows)
    if Kind.UNKNOWN in kinds:
        return Kind.UNKNOWN
    if not for_rows:
        return _drawn(op, op.inputs)
    # With the same seed on all replicas, rows of different replicas get the same numbers.
    return Kind.UNKNOWN if is_by_seed and Kind.DRAWN not in kinds else Kind.ROWS


def _drawn(op: Op, kinds: Collection[Kind]) -> Kind:
    if all(kind.is_fixed for kind in kinds):
        return Kind.SAME if op.type.startswith("Stateless") and Kind.DRAWN not in kinds else Kind.DRAWN
    return row_wise(op)
