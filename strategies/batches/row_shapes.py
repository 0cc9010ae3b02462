"""Kind rules for shapes, slices, reshapes and repetitions; see `row_kinds`."""

from __future__ import annotations

import math
from collections.abc import Sequence
from fractions import Fraction

from strategies.batches.row_arithmetic import addition
from strategies.batches.row_kinds import Kind, Op, mixing, row_wise

_FAULTY = (Kind.UNKNOWN, Kind.AMBIGUOUS)


def shape_of(op: Op) -> Kind:
    """Returns the kind of a tensor's shape."""
    kind = op.inputs[op.output if op.type == "ShapeN" else 0]
    if kind in (Kind.SOME, Kind.DISTINCT):
        return Kind.UNKNOWN
    return Kind.SHAPE if kind.has_rows or kind is Kind.UNKNOWN else Kind.SAME


def size_of(op: Op) -> Kind:
    """Returns the kind of a tensor's number of elements."""
    kind = op.inputs[0]
    if kind in (Kind.SOME, Kind.DISTINCT):
        return Kind.SUM if kind is Kind.SOME else Kind.UNKNOWN
    return Kind.COUNT if kind.has_rows or kind is Kind.UNKNOWN else Kind.SAME


def strided_slice(op: Op) -> Kind:
    """Returns the kind of a strided slice of a tensor or a shape."""
    kind = op.inputs[0]
    if kind is Kind.SHAPE:
        return _part_of_shape(op)
    if not kind.has_rows or kind is Kind.PAIRS:
        return kind
    part = sliced_rows(op)
    if part is None:
        return kind
    return Kind.OTHER if part == 0 else kind if _is_whole(part) else mixing(op)


def sliced_rows(op: Op) -> Fraction | None:
    """Returns the fraction of the rows that a slice takes: 0 for a single row, -1 if unknown, None for all."""
    axis, entry = op.layout(0).axis, 0
    length = _length(op)
    if axis < 0 or length is None:
        return None
    new, shrink, ellipsis = (int(op.attribute(f"{name}_mask") or 0) for name in ("new_axis", "shrink_axis", "ellipsis"))
    dim = 0
    for entry in range(length):
        bit = 1 << entry
        if ellipsis & bit:
            rank, rest = op.rank(0), bin(~new & ((1 << length) - 1) & ~((bit << 1) - 1)).count("1")
            if rank is None:
                return None
            dim = rank - rest
            if axis < dim:
                return None
            continue
        if new & bit:
            continue
        if dim == axis:
            return Fraction(0) if shrink & bit else _part(op, entry)
        dim += 1
    return None


def _length(op: Op) -> int | None:
    begin = op.constant(1)
    if begin is not None:
        return int(begin.size)
    shape = op.shape(1)
    # If the number of entries is unknown, a shrink mask shows that there is at least one.
    return (shape[0] if shape else None) or (1 if op.attribute("shrink_axis_mask") else None)


def _part(op: Op, entry: int) -> Fraction | None:
    bit, times = 1 << entry, op.layout(0).times
    is_first, is_last = (bool(int(op.attribute(f"{name}_mask") or 0) & bit) for name in ("begin", "end"))
    strides = op.numbers(3)
    if strides is not None and strides[entry] != 1:
        return Fraction(-1)
    begin = Fraction(0) if is_first else _bound(op, 1, entry)
    if is_last and begin == 0:
        return None
    end = times if is_last else _bound(op, 2, entry)
    if begin is None or end is None or begin.denominator != 1:
        return Fraction(-1)
    if times is not None and end >= times:
        end = times
    if begin == 0 and end == times:
        return None
    return end - begin if end > begin >= 0 else Fraction(-1)


def _bound(op: Op, i: int, entry: int) -> Fraction | None:
    """Returns the begin or the end of a slice, divided by the number of rows; None if unknown."""
    numbers = op.numbers(i)
    if numbers is not None:
        if numbers[entry] == 0:
            return Fraction(0)
        shape, axis = op.shape(0), op.layout(0).axis
        if i == 2 and shape is not None and shape[axis] is not None and numbers[entry] >= shape[axis]:  # type: ignore[operator]
            return op.layout(0).times
        rows = next(iter(op.num_rows), None)
        return None if rows is None or numbers[entry] < 0 else Fraction(numbers[entry], rows)
    return op.layout(i).times if op.inputs[i] in (Kind.SHAPE, Kind.COUNT) else None


def _is_whole(part: Fraction) -> bool:
    return part > 0 and part.denominator == 1


def _part_of_shape(op: Op) -> Kind:
    begin, end = op.constant(1), op.constant(2)
    if begin is None or end is None or begin.size != 1 or op.attribute("new_axis_mask"):
        return Kind.SHAPE
    first = 0 if int(op.attribute("begin_mask") or 0) & 1 else int(begin.reshape(()))
    axis = max(op.layout(0).axis, 0)
    shape = op.shape(0)
    length = shape[0] if shape else None
    if first < 0:
        if length is None:
            return Kind.SHAPE
        first += length
    if int(op.attribute("shrink_axis_mask") or 0) & 1:
        return Kind.COUNT if first == axis else Kind.SAME
    last = None if int(op.attribute("end_mask") or 0) & 1 else int(end.reshape(()))
    if last is not None and last < 0:
        last = None if length is None else last + length
    return Kind.SHAPE if first <= axis and (last is None or axis < last) else Kind.SAME


def one_slice(op: Op) -> Kind:
    """Returns the kind of a slice that is given by its begin and size."""
    kind, axis = op.inputs[0], op.layout(0).axis
    if not kind.has_rows or kind is Kind.PAIRS or axis < 0:
        return kind
    begin, size, shape = op.numbers(1), op.numbers(2), op.output_shape
    if begin is None or size is None:
        return kind if op.inputs[1] is not Kind.SAME or op.inputs[2] is not Kind.SAME else _whole_by_size(op)
    whole = op.shape(0)
    is_all = size[axis] == -1 or (whole is not None and size[axis] == whole[axis])
    is_all = is_all or (
        shape is not None and whole is not None and shape[axis] is not None and shape[axis] == whole[axis]
    )
    return kind if begin[axis] == 0 and is_all else mixing(op)


def _whole_by_size(op: Op) -> Kind:
    """Returns the kind of a slice with computed bounds, which takes all rows unless the static sizes differ."""
    whole, taken, axis = op.shape(0), op.output_shape, op.layout(0).axis
    if whole is None or taken is None or taken[axis] is None or whole[axis] is None:
        return op.inputs[0]
    return op.inputs[0] if whole[axis] == taken[axis] else mixing(op)


def split(op: Op) -> Kind:
    """Returns the kind of equal parts of a tensor along a dimension."""
    return _split(op, 1, 0)


def split_by_sizes(op: Op) -> Kind:
    """Returns the kind of parts of given sizes."""
    return _split(op, 0, 2)


def _split(op: Op, source: int, dim: int) -> Kind:
    kind, layout, along = op.inputs[source], op.layout(source), op.numbers(dim)
    if kind is Kind.SHAPE:
        return Kind.COUNT if op.output == 0 else Kind.SAME
    if not kind.has_rows or kind is Kind.PAIRS:
        return kind
    rank = op.rank(source)
    if along is None or (along[0] % rank if rank else along[0]) != layout.axis:
        return kind
    part = split_times(op, source)
    return kind if part is not None and part.denominator == 1 else mixing(op)


def split_times(op: Op, source: int) -> Fraction | None:
    """Returns the number of items per row in one part of a split along the rows; None if unknown."""
    times, parts = op.layout(source).times, int(op.attribute("num_split") or 1)
    if source == 1:
        return None if times is None else times / parts
    sizes, rows = op.numbers(1), next(iter(op.num_rows), None)
    if sizes is None or rows is None:
        return None
    begin, size = sum(sizes[: op.output]), sizes[op.output]
    return Fraction(size, rows) if size > 0 and begin % rows == 0 else None


def unpacked(op: Op) -> Kind:
    """Returns the kind of the slices of a tensor along a dimension, or of the sizes in a shape."""
    kind = op.inputs[0]
    if kind is Kind.SHAPE:
        return Kind.COUNT if op.output == max(op.layout(0).axis, 0) else Kind.SAME
    axis, rank = int(op.attribute("axis") or 0), op.rank(0)
    if rank:
        axis %= rank
    return Kind.OTHER if kind.has_rows and axis == op.layout(0).axis else kind


def packed(op: Op) -> Kind:
    """Returns the kind of stacked tensors, or of a shape made of numbers."""
    kinds = set(op.inputs)
    if any(kind.has_rows for kind in kinds) or kinds & {*_FAULTY, Kind.DISTINCT}:
        return row_wise(op, is_linear=Kind.SHIFTED in kinds)
    # A count and constants make a shape.
    return Kind.SHAPE if {Kind.COUNT, Kind.SHAPE} & kinds else addition(op)


def concatenated(op: Op) -> Kind:
    """Returns the kind of concatenated tensors."""
    # The last input is the dimension.
    parts = Op(op.type, op.inputs[:-1], op.input_shapes[:-1], op.output_rank, layouts=op.layouts[:-1])
    kind = packed(parts)
    dims, rank = op.numbers(len(op.inputs) - 1), op.output_rank
    if dims is None or not kind.has_rows or kind is Kind.PAIRS:
        return kind
    axes = {op.layout(i).axis for i, each in enumerate(parts.inputs) if each.has_rows}
    along = dims[0] % rank if rank else dims[0]
    # Rows and items that are no rows, along one dimension: a mean over it would count both.
    return mixing(op) if along in axes and any(not each.has_rows for each in parts.inputs) else kind


def reshaped(op: Op) -> Kind:
    """Returns the kind of a reshaped tensor."""
    kind, shape = op.inputs
    if kind.has_rows or kind is Kind.SHAPE:
        return mixing(op) if kind is not Kind.PAIRS and reshaped_axis(op) is None else kind
    # A tensor without rows, in a shape that contains the number of rows.
    return Kind.ROWS if shape in (Kind.SHAPE, Kind.COUNT) and kind.is_fixed else kind


def reshaped_axis(op: Op) -> tuple[int, Fraction | None, tuple[int | None, ...]] | None:
    """Returns the rows' dimension after a reshape, items per row, sizes merged before it; None if rows are split."""
    layout, before, after = op.layout(0), op.shape(0), op.output_shape
    axis, times = layout.axis, layout.times
    if before is None or after is None or axis < 0 or not after:
        return max(axis, 0) if axis >= 0 else axis, None, ()
    size = before[axis] if axis < len(before) else None
    if axis > 0:
        if len(after) > axis and all(
            one == other or (_may_equal(one, other) and len(before) == len(after))
            for one, other in zip(before[:axis], after[:axis], strict=True)
        ):
            return axis, _times(times, before[axis + 1 :], after[axis + 1 :]), ()
        # The dimensions before that of the rows were reshaped among themselves.
        number = _product(before[:axis])
        for position in range(len(after)):
            if number is not None and _product(after[:position]) == number:
                return position, _times(times, before[axis + 1 :], after[position + 1 :]), ()
        return 0, None, tuple(before[:axis])
    first, leading = after[0], layout.leading
    if leading and len(after) > len(leading) and all(map(_may_equal, leading, after)):
        return len(leading), None, ()
    rows = None if size is None or not times else size / times
    if first is not None and first == rows:
        return 0, _times(times, before[1:], after[1:]), ()
    if first == 1 and size != 1:
        position = next((i for i, each in enumerate(after) if each != 1), 0)
        return position, _times(times, before[1:], after[position + 1 :]), ()
    whole = times is not None and times.denominator == 1 and times > 1
    if whole and times is not None and first == times and len(after) > 1 and first != rows:
        return 1, _times(Fraction(1), before[1:], after[2:]), ()
    if first is not None and first not in op.num_rows:
        if size is None:
            # The number of rows is unknown, but the result's first size is static: rows are in several dimensions.
            return None if times == 1 else (0, None, ())
        if rows and first % rows and first < size:
            return None
    return 0, _times(times, before[1:], after[1:]), ()


def _may_equal(one: int | None, other: int | None) -> bool:
    return one is None or other is None or one == other


def _times(times: Fraction | None, old: Sequence[int | None], new: Sequence[int | None]) -> Fraction | None:
    """Returns the items per row, given the sizes of the later dimensions before (`old`) and after (`new`) a reshape."""
    if list(old) == list(new):
        return times
    if times is None:
        return None
    of_old, of_new = _product(old), _product(new)
    return times * of_old / of_new if of_old and of_new else None


def _product(sizes: Sequence[int | None]) -> int | None:
    known = [size for size in sizes if size is not None]
    return math.prod(known) if len(known) == len(sizes) else None


def spread(op: Op) -> Kind:
    """Returns the kind of a repeated tensor or of a filled shape; it has rows if the shape contains their number."""
    kind = op.inputs[0]
    if any(each in (Kind.SHAPE, Kind.COUNT) for each in op.inputs):
        if op.type == "Tile" and kind.has_rows:
            return kind
        if kind is Kind.MEAN:
            return Kind.SHIFTED
        fits = kind.is_fixed or kind in (Kind.ROWS, Kind.SHAPE, Kind.COUNT)
        return Kind.ROWS if fits else row_wise(op)
    if op.type == "Tile" and kind.has_rows:
        times, axis = op.numbers(1), op.layout(0).axis
        # Every row is repeated equally often.
        return kind if times is None or axis < 0 or times[axis] >= 1 else row_wise(op)
    return kind if all(each.is_fixed for each in op.inputs[1:]) else row_wise(op)


def is_for_each_row(op: Op) -> bool:
    """Returns True if a tensor is repeated for each row, whose number the program read from a static shape."""
    return op.first_size in op.num_rows and op.output_rank is not None and op.output_rank > 1


def like(op: Op) -> Kind:
    """Returns the kind of ones or zeros in the shape of a tensor."""
    return Kind.ROWS if op.inputs[0].has_rows else Kind.SAME


def reduced_dims_of_broadcast(op: Op) -> Kind:
    """Returns the kind of the dimensions over which the gradient of a broadcast tensor is summed."""
    return Kind.SAME if set(op.inputs) == {Kind.SAME} else Kind.SHAPE
