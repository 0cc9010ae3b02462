"""Rules of shapes, parts and repetitions: the kind of what they make, see `row_kinds`."""

from __future__ import annotations

from strategies.batches.row_arithmetic import addition
from strategies.batches.row_kinds import Kind, Op, of_unknown


def shape_of(op: Op) -> Kind:
    """The shape of a tensor."""
    return Kind.SHAPE if op.inputs[0].has_rows else Kind.SAME


def size_of(op: Op) -> Kind:
    """The number of elements of a tensor."""
    return Kind.COUNT if op.inputs[0].has_rows else Kind.SAME


def strided_slice(op: Op) -> Kind:
    """A part of a tensor, or a dimension of a shape."""
    kind = op.inputs[0]
    if kind is Kind.SHAPE:
        return _part_of_shape(op)
    if kind.has_rows and int(op.attribute("shrink_axis_mask") or 0) & 1:
        # One row.
        return Kind.OTHER
    return kind


def _part_of_shape(op: Op) -> Kind:
    begin, end = op.constant(1), op.constant(2)
    if begin is None or end is None or begin.size != 1 or op.attribute("new_axis_mask"):
        return Kind.SHAPE
    first = 0 if int(op.attribute("begin_mask") or 0) & 1 else int(begin.reshape(()))
    if first < 0:
        length = op.input_shapes[0][0] if op.input_shapes[0] else None
        if length is None:
            return Kind.SHAPE
        first += length
    if first > 0:
        return Kind.SAME
    return Kind.COUNT if int(op.attribute("shrink_axis_mask") or 0) & 1 else Kind.SHAPE


def unpacked(op: Op) -> Kind:
    """The parts of a tensor along a dimension, or the dimensions of a shape."""
    kind = op.inputs[0]
    if kind is Kind.SHAPE:
        return Kind.COUNT if op.output == 0 else Kind.SAME
    return Kind.OTHER if kind.has_rows and not op.attribute("axis") else kind


def packed(op: Op) -> Kind:
    """Tensors side by side, or a shape made of numbers."""
    if any(kind.has_rows for kind in op.inputs):
        return of_unknown(op)
    # Of a count and constants: a shape.
    return Kind.SHAPE if {Kind.COUNT, Kind.SHAPE} & set(op.inputs) else addition(op)


def concatenated(op: Op) -> Kind:
    """Tensors end to end."""
    # The last input is the dimension.
    return packed(Op(op.type, op.inputs[:-1], op.input_shapes[:-1], op.output_rank))


def gathered(op: Op) -> Kind:
    """Rows of a table, or of the batch, that are looked up."""
    table, indices = op.inputs[:2]
    if table is Kind.SHAPE:
        index = op.constant(1)
        if index is None or index.size != 1:
            return Kind.SHAPE
        return Kind.COUNT if int(index.reshape(())) == 0 else Kind.SAME
    if table in (Kind.MEAN, Kind.SUM, Kind.MIXED) and indices is Kind.SAME:
        return table
    return of_unknown(op)


def reshaped(op: Op) -> Kind:
    """A tensor in another shape."""
    kind, shape = op.inputs
    if kind in (Kind.ROWS, Kind.ROWS_PER_COUNT, Kind.PAIRS, Kind.SHAPE):
        return kind
    # Something that has no rows, in a shape that has their number in it.
    return Kind.ROWS if shape in (Kind.SHAPE, Kind.COUNT) else kind


def spread(op: Op) -> Kind:
    """A tensor repeated, or a constant in a shape: for each row, if the shape has rows."""
    if any(kind in (Kind.SHAPE, Kind.COUNT) for kind in op.inputs):
        return Kind.ROWS
    return op.inputs[0] if all(kind is Kind.SAME for kind in op.inputs[1:]) else of_unknown(op)


def is_for_each_row(op: Op) -> bool:
    """True if a tensor is repeated for each row, the number of which the program found in a shape."""
    return op.first_size in op.num_rows and op.output_rank is not None and op.output_rank > 1


def like(op: Op) -> Kind:
    """Ones or zeros in the shape of a tensor."""
    return Kind.ROWS if op.inputs[0].has_rows else Kind.SAME


def unique(op: Op) -> Kind:
    """The values of a vector, each once; the second output says which of them each element is."""
    if op.inputs[0] is Kind.UNIQUE:
        return Kind.UNIQUE if op.output == 0 else Kind.OTHER
    if not op.inputs[0].has_rows:
        return op.inputs[0]
    return (Kind.UNIQUE, Kind.ROWS, Kind.OTHER)[op.output]
