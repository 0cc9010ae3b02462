"""Computes the layout of an operation's output: see `row_kinds.Layout`."""

from __future__ import annotations

import dataclasses
from fractions import Fraction

from strategies.batches import row_arithmetic as arithmetic
from strategies.batches import row_gathers as gathers
from strategies.batches import row_names as names
from strategies.batches import row_shapes as shapes
from strategies.batches.row_divisors import constant_divisor
from strategies.batches.row_kinds import ROW_MAJOR, Kind, Layout, Op
from strategies.batches.row_positions import with_positions

_QUOTIENTS = ("Div", "DivNoNan", "RealDiv")
#: Further ops that are linear in rows.
_LINEAR = (
    *("BatchMatMul", "BatchMatMulV2", "ConcatV2", "Einsum", "Gather", "GatherNd", "GatherV2", "MatMul", "Mean", "Pack"),
    *("Reshape", "Slice", "Split", "SplitV", "StridedSlice", "Sum", "Tile", "Unpack"),
)
_REDUCTIONS = ("All", "Any", "ArgMax", "ArgMin", "EuclideanNorm", "Max", "Mean", "Min", "Prod", "Sum")
#: Ops that only take parts of a shape or a count, or build other shapes from it.
_HAND_ON = (
    *("Cast", "ConcatV2", "ExpandDims", "GatherV2", "Identity", "Pack", "Reshape", "Slice", "Split", "SplitV"),
    *("Squeeze", "StridedSlice", "Unpack"),
)


def layout_of(op: Op, kind: Kind) -> Layout:
    """Returns the layout of an operation's output of the given kind."""
    if kind.is_fixed:
        return _fixed_layout(op)
    if not (kind.has_rows or kind in (Kind.SUM, Kind.COUNT, Kind.SHAPE, Kind.DISTINCT)):
        return ROW_MAJOR
    found = _moved(op, kind)
    if found.summed is not None and kind in (Kind.SUM, Kind.ROWS):
        found = dataclasses.replace(found, summed=_summed(op))
    found = dataclasses.replace(
        found,
        is_position=False,
        is_scaled=False,
        is_row_number=False,
        is_constant=kind is Kind.ROWS and _is_constant(op),
        divided_by=_divided_by(op) if kind is Kind.ROWS else Kind.SAME,
        may_be_rows=False,
    )
    return with_positions(found, op, op.type == "Range") if kind.has_rows and op.is_integer else found


def _is_constant(op: Op) -> bool:
    """Returns True if rows are ones, or another constant, in the shape of a batch."""
    if op.type in ("OnesLike", "ZerosLike"):
        return True
    if op.type == "Fill":
        return all(kind is Kind.SAME for kind in op.inputs[1:])
    is_linear = op.type in names.UNCHANGED or op.type in names.PRODUCTS
    return is_linear and all(kind is Kind.SAME or op.layout(i).is_constant for i, kind in enumerate(op.inputs))


def _divided_by(op: Op) -> Kind:
    """Returns the kind of the constant that rows are divided by in this op, or were before; see `Layout`."""
    before = {op.layout(i).divided_by for i, kind in enumerate(op.inputs) if kind.has_rows}
    if op.type in names.PRODUCTS or op.type in _QUOTIENTS:
        by_constant = op.inputs.count(Kind.SAME) == 1 and (op.type in names.PRODUCTS or op.inputs[1] is Kind.SAME)
        divisor = constant_divisor(op) if by_constant else Kind.SAME
        if divisor is not Kind.SAME:
            return divisor
        before.discard(Kind.SAME)
    elif op.type in names.ADDITIONS:
        before |= {Kind.SAME for kind in op.inputs if not kind.has_rows}
    elif op.type not in names.UNCHANGED and op.type not in _LINEAR:
        return Kind.SAME
    return before.pop() if len(before) == 1 else Kind.SAME


def _fixed_layout(op: Op) -> Layout:
    """Returns the layout of an output without rows, which may still have an item for each of a known number of rows."""
    for_rows = op.first_size in op.num_rows and bool(op.output_rank)
    is_made = op.type == "Fill" or (op.type in ("BroadcastTo", "Tile") and (op.output_rank or 0) > 1)
    is_made = is_made and not op.is_integer
    may_be_rows = for_rows and (is_made or any(layout.may_be_rows for layout in op.layouts))
    return with_positions(Layout(may_be_rows=may_be_rows), op, op.type == "Range" and for_rows)


def _dependent(op: Op) -> list[int]:
    return [i for i, kind in enumerate(op.inputs) if not kind.is_fixed]


def _summed(op: Op) -> tuple[int, ...] | None:
    """Returns the sizes of the dimensions of each row that were summed, of all factors and terms; None if unknown."""
    found: tuple[int, ...] = ()
    for i in _dependent(op):
        own = op.layout(i).summed
        if own is None:
            return None
        found = max(found, own, key=len)
    if op.type not in ("Sum", "Mean"):
        return found
    dims, shape, axis = arithmetic.reduced_dims(op), op.shape(0), op.layout(0).axis
    if dims is None or shape is None:
        return None
    sizes = [shape[dim] for dim in dims if dim != axis]
    # Each row has several items, as when batch and token dimensions are merged.
    times = op.layout(0).times
    if axis in dims and times != 1:
        sizes.append(None if times is None or times.denominator != 1 else int(times))
    known = [size for size in sizes if size is not None]
    return (*found, *(size for size in known if size != 1)) if len(known) == len(sizes) else None


def _moved(op: Op, kind: Kind) -> Layout:
    source = next(iter(i for i in _dependent(op) if op.inputs[i].has_rows), None)
    if source is None:
        return _count_layout(op, kind)
    layout = op.layout(source)
    axis, rank = layout.axis, op.rank(source)
    if axis < 0 and op.type not in ("TensorListStack", "TensorListGather"):
        return layout
    if op.type == "Shape":
        return layout
    if op.type == "Size":
        return dataclasses.replace(layout, times=_size_of_row(op))
    if op.type in _REDUCTIONS:
        dims = arithmetic.reduced_dims(op)
        if dims is None or axis in dims or op.attribute("keep_dims"):
            return layout
        return _at(layout, axis - sum(dim < axis for dim in set(dims)))
    if op.type in ("Transpose", "ConjugateTranspose"):
        order = op.numbers(1)
        return layout if order is None or axis not in order else _at(layout, order.index(axis))
    if op.type == "ExpandDims":
        dims = op.numbers(1)
        if dims is None or rank is None:
            return layout
        return _at(layout, axis + (dims[0] % (rank + 1) <= axis))
    if op.type == "Squeeze":
        given = [int(each) for each in op.attribute("squeeze_dims") or op.attribute("axis") or ()]
        shape = op.shape(source)
        gone = {each % rank for each in given} if given and rank else {i for i, n in enumerate(shape or ()) if n == 1}
        return _at(layout, axis - sum(dim < axis for dim in gone))
    if op.type == "Reshape":
        reshaped = shapes.reshaped_axis(op)
        if reshaped is None:
            return Layout(0, None, (), layout.summed)
        return Layout(reshaped[0], reshaped[1], reshaped[2], layout.summed)
    if op.type in ("StridedSlice", "Slice", "Split", "SplitV"):
        return _part_layout(op, source, layout)
    if op.type == "Pack":
        dim = int(op.attribute("axis") or 0)
        return _at(layout, axis + (dim % (rank + 1) <= axis if rank is not None else dim <= axis))
    if op.type == "Unpack":
        dim = int(op.attribute("axis") or 0)
        return _at(layout, axis - (dim % rank < axis if rank else dim < axis))
    if op.type == "ConcatV2":
        return _concatenation_layout(op, layout)
    if op.type == "OneHot":
        dim = int(op.attribute("axis") if op.attribute("axis") is not None else -1)
        return _at(layout, axis + (0 <= dim <= axis))
    if op.type in ("GatherV2", "Gather", "GatherNd", "ResourceGather"):
        return _gather_layout(op, source, layout)
    if op.type == "Einsum":
        terms, made = arithmetic.equation(op)
        label = terms[source][axis : axis + 1] if source < len(terms) and "." not in terms[source] + made else ""
        return _at(layout, made.index(label)) if label and label in made else layout
    if op.type.startswith(("BatchMatMul", "MatMul")):
        return _product_layout(op, source, layout)
    if op.type == "TensorListFromTensor":
        return _at(layout, axis - 1)
    if op.type in ("TensorListStack", "TensorListGather"):
        return _at(layout, axis + 1)
    if op.type == "Tile":
        return dataclasses.replace(layout, times=None)
    return layout if op.type.startswith("TensorList") else _aligned(op, source, layout)


def _aligned(op: Op, source: int, layout: Layout) -> Layout:
    """Returns the layout after broadcasting, which aligns dimensions from the last one."""
    rank, made = op.rank(source), op.output_rank
    if rank is None or made is None or made <= rank or op.output:
        return layout
    return _at(layout, layout.axis + made - rank)


def _at(layout: Layout, axis: int) -> Layout:
    return layout if axis == layout.axis else dataclasses.replace(layout, axis=axis)


def _count_layout(op: Op, kind: Kind) -> Layout:
    """Returns the layout of counts and shapes, and of tensors that are made in such shapes."""
    dependent = _dependent(op)
    if not dependent:
        return ROW_MAJOR
    layout = op.layout(dependent[0])
    if kind is Kind.SHAPE:
        if op.type in ("Pack", "ConcatV2") and len(dependent) == 1 and op.inputs[dependent[0]] is Kind.COUNT:
            return dataclasses.replace(layout, axis=dependent[0] if op.type == "Pack" else _before(op, dependent[0]))
        if op.type == "ConcatV2" and len(dependent) == 1:
            return dataclasses.replace(layout, axis=layout.axis + _before(op, dependent[0]))
        return layout
    if kind is Kind.COUNT:
        return dataclasses.replace(layout, times=_factor(op, layout.times))
    if kind.has_rows:
        # The rows are along the dimension whose size in the shape is the number of rows.
        axis = layout.axis if op.inputs[dependent[0]] is Kind.SHAPE else 0
        rank = op.output_rank
        return Layout(axis if rank is None or axis < rank else 0, layout.times)
    return layout


def _before(op: Op, i: int) -> int:
    """Returns the number of a shape's entries that are concatenated before input `i`."""
    shapes_before = [op.shape(j) for j in range(i)]
    return sum((shape[0] or 0) if shape else 0 for shape in shapes_before)


def _factor(op: Op, times: Fraction | None) -> Fraction | None:
    numbers = [op.constant(i) for i, kind in enumerate(op.inputs) if kind is Kind.SAME]
    if op.type in _HAND_ON:
        return times
    if times is None or len(op.inputs) != 2 or len(numbers) != 1 or numbers[0] is None or numbers[0].size != 1:
        return None
    number = Fraction(float(numbers[0].reshape(())))
    if op.type == "Mul":
        return times * number
    if op.type in ("FloorDiv", "RealDiv", "TruncateDiv", "Div") and number:
        return times / number
    return None


def _size_of_row(op: Op) -> Fraction | None:
    shape, layout, size = op.shape(0), op.layout(0), Fraction(1)
    for i, each in enumerate(shape or ()):
        if i != layout.axis:
            if each is None:
                return None
            size *= each
    return None if shape is None or layout.times is None else layout.times * size


def _part_layout(op: Op, source: int, layout: Layout) -> Layout:
    if op.type == "Slice":
        return layout
    if op.type in ("Split", "SplitV"):
        along, rank = op.numbers(0 if op.type == "Split" else 2), op.rank(source)
        if along is None or (along[0] % rank if rank else along[0]) != layout.axis:
            return layout
        return dataclasses.replace(layout, times=shapes.split_times(op, source))
    part = shapes.sliced_rows(op)
    return dataclasses.replace(layout if part is None else dataclasses.replace(layout, times=part), axis=_kept_axis(op))


def _kept_axis(op: Op) -> int:
    """Returns the dimension of rows after a strided slice, which may drop and insert dimensions."""
    new, shrink, ellipsis = (int(op.attribute(f"{name}_mask") or 0) for name in ("new_axis", "shrink_axis", "ellipsis"))
    axis, dim, made = op.layout(0).axis, 0, 0
    begin, shape, rank = op.constant(1), op.shape(1), op.rank(0)
    length = int(begin.size) if begin is not None else (shape[0] if shape else None) or 0
    for entry in range(length):
        bit = 1 << entry
        if ellipsis & bit:
            if rank is None:
                return axis
            rest = bin(~new & ((1 << length) - 1) & ~((bit << 1) - 1)).count("1")
            if axis < rank - rest:
                return made + axis - dim
            made, dim = made + rank - rest - dim, rank - rest
        elif new & bit:
            made += 1
        elif dim == axis:
            return made
        else:
            made, dim = made + (not shrink & bit), dim + 1
    return made + axis - dim


def _concatenation_layout(op: Op, layout: Layout) -> Layout:
    dims, rank = op.numbers(len(op.inputs) - 1), op.output_rank
    if dims is None or (dims[0] % rank if rank else dims[0]) != layout.axis:
        return layout
    times = [op.layout(i).times for i, kind in enumerate(op.inputs[:-1]) if kind.has_rows]
    known = [each for each in times if each is not None]
    return dataclasses.replace(layout, times=sum(known, Fraction(0)) if len(known) == len(times) else None)


def _gather_layout(op: Op, source: int, layout: Layout) -> Layout:
    if op.type == "GatherNd":
        return layout if source == 1 else ROW_MAJOR
    dim, batch = gathers.gathered_dim(op), int(op.attribute("batch_dims") or 0)
    if source == 1:
        return _at(layout, layout.axis + (dim if layout.axis >= batch else 0) - (batch if layout.axis >= batch else 0))
    if layout.axis == dim:
        return ROW_MAJOR
    width = op.rank(1)
    return layout if layout.axis < dim or width is None else _at(layout, layout.axis - 1 + width - batch)


def _product_layout(op: Op, source: int, layout: Layout) -> Layout:
    rank, made = op.rank(source), op.output_rank
    if rank is None or made is None:
        return layout
    from_end = layout.axis - rank
    if from_end < -2:
        return _at(layout, made + from_end)
    return _at(layout, made - (2 if source == 0 else 1))
