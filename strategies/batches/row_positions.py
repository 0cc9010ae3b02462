"""Kind rules for positions of rows: as indices they are each row's own, as numbers they are the replica's."""

from __future__ import annotations

import dataclasses

from strategies.batches import row_arithmetic as arithmetic
from strategies.batches import row_names as names
from strategies.batches.row_kinds import Kind, Layout, Op
from strategies.batches.row_order import by_row
from strategies.batches.row_shapes import spread

#: Ops that keep positions, or stack, flatten and look them up.
_KEEPING = (
    *("BroadcastTo", "ConcatV2", "FloorDiv", "Mul", "Pack", "Reshape", "Slice", "Split", "SplitV", "StridedSlice"),
    *("Tile", "Unpack"),
)
_ADDITIONS = ("Add", "AddV2", "Sub")
#: Ops after which a number still follows from a position, but is not the row's own any more.
_MOVING = ("FloorMod", "Maximum", "Minimum", "Mod", "Neg", "TruncateMod")


def with_positions(layout: Layout, op: Op, is_range: bool) -> Layout:
    """Returns the layout of an output, with the flags for positions.

    Args:
        layout: the layout, without these flags.
        op: the operation.
        is_range: whether it is a range over rows, or may be one.
    """
    if is_range:
        begins_at_0 = op.inputs[0] is Kind.SAME and op.numbers(0) in (None, [0])
        # Up to a constant, which may be a number of rows, it may also count the items of each row.
        return dataclasses.replace(layout, is_position=begins_at_0, is_row_number=Kind.COUNT in op.inputs)
    sources = op.layouts[:1] if op.type in names.LOOKUPS else op.layouts
    is_position = any(each.is_position for each in sources)
    is_scaled = op.type == "Mul" or any(each.is_scaled for each in sources)
    is_row_number = any(each.is_row_number for each in sources)
    if op.type in _ADDITIONS:
        # Items of a row follow its position among flattened items; without these, a position is moved to another row.
        is_position = is_position and is_scaled
        is_row_number = is_row_number and all(
            op.layout(i).is_row_number or (kind is Kind.SAME and op.constant(i) is not None)
            for i, kind in enumerate(op.inputs)
        )
    elif op.type in _MOVING:
        is_position = False
    elif not (op.type in names.UNCHANGED or op.type in names.LOOKUPS or op.type in _KEEPING):
        return layout
    return dataclasses.replace(
        layout, is_position=is_position, is_scaled=is_position and is_scaled, is_row_number=is_row_number
    )


def counted_up(op: Op) -> Kind:
    """Returns the kind of a range: positions of rows if it goes up to their number."""
    # A range of floats is used as values, not as indices, and each replica counts its own rows.
    return Kind.PAIRS if Kind.COUNT in op.inputs and not op.is_integer else spread(op)


def cast(op: Op) -> Kind:
    """Returns the kind of a tensor of another dtype; positions that become floats differ from those on one device."""
    return Kind.PAIRS if are_row_numbers(op, 0) and not op.is_integer else op.inputs[0]


def one_hot(op: Op) -> Kind:
    """Returns the kind of one vector per index."""
    return Kind.PAIRS if are_row_numbers(op, 0) else by_row(op)


def comparison(op: Op) -> Kind:
    """Returns the kind of a comparison; positions compared with a constant select other rows on each replica."""
    with_constant = any(kind is Kind.SAME for kind in op.inputs)
    is_of_positions = any(are_row_numbers(op, i) for i in range(len(op.inputs)))
    return Kind.PAIRS if with_constant and is_of_positions else arithmetic.comparison(op)


def are_row_numbers(op: Op, i: int) -> bool:
    """Returns True if an input's integers are computed from positions of rows and constants."""
    return op.inputs[i] is Kind.ROWS and op.layout(i).is_row_number
