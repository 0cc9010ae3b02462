"""Kind rules for positions of rows: as indices they are each row's own, as numbers they are the replica's."""

from __future__ import annotations

from strategies.batches.row_kinds import Kind, Op
from strategies.batches.row_order import by_row
from strategies.batches.row_shapes import spread


def counted_up(op: Op) -> Kind:
    """Returns the kind of a range: positions of rows if it goes up to their number."""
    # Numbers that are no integers are no positions, but values of which replicas have others.
    return Kind.PAIRS if Kind.COUNT in op.inputs and not op.is_integer else spread(op)


def cast(op: Op) -> Kind:
    """Returns the kind of a tensor of another dtype; as a number, each replica's position of a row is another one."""
    return Kind.PAIRS if are_positions(op, 0) and not op.is_integer else op.inputs[0]


def one_hot(op: Op) -> Kind:
    """Returns the kind of one vector per index."""
    return Kind.PAIRS if are_positions(op, 0) else by_row(op)


def are_positions(op: Op, i: int) -> bool:
    """Returns True if an input's integers are positions of rows."""
    return op.inputs[i] is Kind.ROWS and op.layout(i).is_position
