"""Kind rules for operations by indices: gathers, scatters, segment reductions, counts; see `row_kinds`."""

from __future__ import annotations

import dataclasses

from strategies.batches.row_kinds import Kind, Op, mixing, row_wise
from strategies.batches.row_positions import are_row_numbers


def gathered(op: Op) -> Kind:
    """Returns the kind of rows that are gathered from a table, or from the batch."""
    table, indices = op.inputs[:2]
    if table is Kind.SHAPE:
        index = op.numbers(1)
        if index is None or len(index) != 1:
            return Kind.SHAPE
        return Kind.COUNT if index[0] == max(op.layout(0).axis, 0) else Kind.SAME
    if table in (Kind.MEAN, Kind.SUM, Kind.MIXED) and indices is Kind.SAME:
        return table
    if table is Kind.SAME and are_row_numbers(op, 1):
        # An item for each position in the batch: the replicas count from 0 each.
        return Kind.PAIRS
    if table is Kind.DISTINCT and indices is Kind.ROWS:
        return Kind.ROWS
    if not table.has_rows or table is Kind.PAIRS:
        return row_wise(op)
    batch_dims = int(op.attribute("batch_dims") or 0)
    if gathered_dim(op) != op.layout(0).axis or batch_dims > op.layout(0).axis:
        each_its_own = not indices.has_rows or (batch_dims > op.layout(0).axis == op.layout(1).axis)
        return _by_row(op) if each_its_own else Kind.PAIRS
    return _rows_by(op, table, indices)


def _by_row(op: Op) -> Kind:
    """Returns the kind of a row-wise operation, whatever the dimensions of its indices."""
    return row_wise(dataclasses.replace(op, input_shapes=()))


def gathered_dim(op: Op) -> int:
    """Returns the dimension of the table along which a gather selects."""
    dims = op.numbers(2) if len(op.inputs) > 2 else [0]
    if dims is None:
        return 0
    rank = op.rank(0)
    return dims[0] % rank if rank else dims[0]


def _rows_by(op: Op, table: Kind, indices: Kind) -> Kind:
    """Returns the kind of a gather along the dimension of rows."""
    if (indices.has_rows or indices is Kind.SAME) and op.layout(1).is_position:
        # The indices are positions of rows: each row selects its own items.
        return _by_row(op)
    return Kind.SOME if indices is Kind.SOME and table in (Kind.ROWS, Kind.SOME) else mixing(op)


def gathered_by_tuples(op: Op) -> Kind:
    """Returns the kind of parts of a tensor that are gathered by tuples of indices."""
    table, indices = op.inputs[:2]
    if table.has_rows and table is not Kind.PAIRS and op.layout(0).axis == 0:
        return _rows_by(op, table, indices)
    return row_wise(op)


def nonzero_indices(op: Op) -> Kind:
    """Returns the kind of the indices of nonzero elements."""
    kind = op.inputs[0]
    return Kind.SOME if kind.has_rows and kind is not Kind.PAIRS else mixing(op)


def scattered(op: Op) -> Kind:
    """Returns the kind of a sum of updates by indices, into zeros of a given shape."""
    indices, updates, shape = op.inputs[:3]
    if shape in (Kind.SHAPE, Kind.COUNT):
        return _by_row(op) if op.layout(0).is_position or not updates.has_rows else mixing(op)
    return _summed(op, indices, updates)


def scattered_into(op: Op) -> Kind:
    """Returns the kind of a tensor to which updates are added by indices."""
    into, indices, updates = op.inputs[:3]
    if into.has_rows:
        return _by_row(op) if op.layout(1).is_position or indices.is_fixed else mixing(op)
    summed = _summed(op, indices, updates)
    if into.is_fixed and summed is Kind.SUM:
        start = op.constant(0)
        return Kind.SUM if start is not None and not start.any() else Kind.MIXED
    return summed if into.is_fixed else mixing(op)


def overwritten(op: Op) -> Kind:
    """Returns the kind of a tensor whose parts are replaced by indices."""
    if op.inputs[0].has_rows and op.layout(1).is_position:
        return _by_row(op)
    return mixing(op)


def summed_by_segment(op: Op) -> Kind:
    """Returns the kind of sums of rows by segment."""
    data, segments, number = op.inputs[:3]
    if number in (Kind.COUNT, Kind.SHAPE):
        return _by_row(op) if op.layout(1).is_position else mixing(op)
    return _summed(op, segments, data)


def counted(op: Op) -> Kind:
    """Returns the kind of a histogram: the count of each number."""
    kind = op.inputs[0]
    if kind is not Kind.ROWS:
        return mixing(op)
    if op.rank(0) == 2 and op.output_rank == 2 and op.layout(0).axis == 0:
        # The number of columns depends on the largest number in all rows; the program has to ensure that it agrees.
        return Kind.ROWS
    return Kind.SUM if op.inputs[1].is_fixed else mixing(op)


def _summed(op: Op, indices: Kind, values: Kind) -> Kind:
    kinds = {indices, values} - {Kind.SAME, Kind.DRAWN}
    return Kind.SUM if kinds and kinds <= {Kind.ROWS, Kind.SOME} else mixing(op)


def distinct(op: Op) -> Kind:
    """Returns the kind of an output of Unique: distinct values, each input value's index in them, or their counts."""
    kind = op.inputs[0]
    if kind is Kind.ROWS:
        return Kind.ROWS if op.output == 1 else Kind.DISTINCT
    return mixing(op)


def reduced_by_segment(op: Op) -> Kind:
    """Returns the kind of sums or means, per row, of the entries that each row looks up."""
    if op.inputs[1] is Kind.ROWS and op.inputs[0] in (Kind.SAME, Kind.DISTINCT):
        return Kind.ROWS
    return mixing(op)


def sparse_product(op: Op) -> Kind:
    """Returns the kind of a sparse matrix times a dense one."""
    kinds = set(op.inputs[:3])
    if not any(kind.has_rows for kind in kinds):
        return mixing(op) if op.inputs[3].has_rows else row_wise(op)
    if op.attribute("adjoint_a"):
        return Kind.SUM if op.inputs[3] in (Kind.ROWS, Kind.SAME) else mixing(op)
    return mixing(op) if op.inputs[3].has_rows else Kind.ROWS


def components(op: Op) -> Kind:
    """Returns the kind of an output computed from a sparse tensor's indices and values, which correspond one to one."""
    kinds = {kind for kind in op.inputs if not kind.is_fixed}
    return Kind.ROWS if kinds and kinds <= {Kind.ROWS, Kind.SHAPE} else mixing(op)


def reduced_by_sorted_segment(op: Op) -> Kind:
    """Returns the kind of reductions by sorted segment ids; the segments are rows, as for sparse and ragged tensors."""
    return Kind.ROWS if tuple(op.inputs[:2]) == (Kind.ROWS, Kind.ROWS) else mixing(op)
