"""Kind rules for sums, means and arithmetic; see `row_kinds`."""

from __future__ import annotations

from collections.abc import Callable, Collection, Mapping

from strategies.batches.row_divisors import constant_divisor
from strategies.batches.row_kinds import Kind, Op, linear, mixing, row_wise

_FAULTY = (Kind.UNKNOWN, Kind.AMBIGUOUS)


def reduced_dims(op: Op) -> list[int] | None:
    """Returns the dimensions that a reduction goes over, counted from the front; None if unknown."""
    wanted, rank = op.numbers(1), op.rank(0)
    if wanted is None:
        return None
    if rank is None:
        # The first dimension may still be known not to be among them.
        return wanted if all(dim >= 0 for dim in wanted) else None
    return [dim % rank for dim in wanted] if rank else []


def reduction(
    over_rows: Mapping[Kind, Kind], is_linear: bool = True, of_extreme: Kind = Kind.OTHER
) -> Callable[[Op], Kind]:
    """Returns the rule of a reduction.

    Args:
        over_rows: maps the kind of an input with rows to the kind of its reduction over rows; others become `OTHER`.
        is_linear: whether the reduction of a mean is a mean, and that of a sum a sum.
        of_extreme: the kind, `MAX` or `MIN`, that the reduction keeps.
    """

    def rule(op: Op) -> Kind:
        kind = op.inputs[0]
        if kind.is_fixed:
            return Kind.AMBIGUOUS if over_rows.get(Kind.ROWS) is Kind.SUM and _sums_what_may_be_rows(op) else kind
        if kind in _FAULTY:
            return kind
        if kind is Kind.DISTINCT:
            return Kind.UNKNOWN
        if not kind.has_rows:
            return kind if (is_linear and kind is not Kind.SHAPE) or kind is of_extreme else Kind.OTHER
        dims, axis = reduced_dims(op), op.layout(0).axis
        if len(op.inputs) > 1 and op.inputs[1] is not Kind.SAME and op.output_rank != 0:
            # The gradient of a broadcast: a reduction over the dimensions that were broadcast.
            return kind
        if axis < 0:
            return kind
        if op.output_rank != 0 and (dims is None or axis not in dims):
            if dims is None:
                return Kind.OTHER
            return kind if is_linear or kind is not Kind.SHIFTED else Kind.UNKNOWN
        reduced = over_rows.get(kind, Kind.OTHER)
        return _reduction_of_known(op, reduced) if kind is Kind.ROWS else reduced

    return rule


def _reduction_of_known(op: Op, reduced: Kind) -> Kind:
    """Returns the kind of a reduction of rows that are positions, a constant, or divided by one; else `reduced`."""
    layout = op.layout(0)
    if layout.is_row_number:
        return Kind.OTHER
    if layout.is_constant and op.output_rank == 0:
        return {Kind.SUM: Kind.COUNT, Kind.MEAN: Kind.SAME}.get(reduced, reduced)
    if reduced is not Kind.SUM or layout.divided_by is Kind.SAME:
        return reduced
    return Kind.MEAN if layout.divided_by is Kind.COUNT else Kind.AMBIGUOUS


def _sums_what_may_be_rows(op: Op) -> bool:
    if not op.layout(0).may_be_rows:
        return False
    dims = reduced_dims(op)
    return op.output_rank == 0 or dims is None or 0 in dims


mean = reduction({Kind.ROWS: Kind.MEAN, Kind.SHIFTED: Kind.MEAN})
total = reduction({Kind.ROWS: Kind.SUM, Kind.SHIFTED: Kind.SUM, Kind.SOME: Kind.SUM, Kind.ROWS_PER_COUNT: Kind.MEAN})
largest = reduction({Kind.ROWS: Kind.MAX, Kind.SOME: Kind.MAX}, is_linear=False, of_extreme=Kind.MAX)
smallest = reduction({Kind.ROWS: Kind.MIN, Kind.SOME: Kind.MIN}, is_linear=False, of_extreme=Kind.MIN)
#: The rule of reductions whose results cannot be combined over replicas.
not_linear = reduction({}, is_linear=False)


def product(op: Op) -> Kind:
    """Returns the kind of a product of elements; the product of a shape's elements is a number of elements."""
    return Kind.COUNT if op.inputs[0] in (Kind.SHAPE, Kind.COUNT) else not_linear(op)


def l2_loss(op: Op) -> Kind:
    """Returns the kind of half the sum of squares."""
    return Kind.SUM if op.inputs[0] in (Kind.ROWS, Kind.SOME) else mixing(op)


def addition(op: Op) -> Kind:
    """Returns the kind of sums and differences of terms."""
    # A mean plus a number that each replica draws is still a mean: that of the rows with their replica's number added.
    kinds = {Kind.SAME if kind is Kind.DRAWN else kind for kind in op.inputs}
    if op.type == "BiasAdd" and kinds == {Kind.ROWS} and _has_one_row(op):
        # Keras adds one row, without its dimension of rows, to another as if it were a bias.
        return Kind.ROWS
    if kinds == {Kind.SAME} or kinds & {Kind.PAIRS, Kind.SHAPE, Kind.DISTINCT, Kind.SOME, *_FAULTY}:
        return row_wise(op)
    if kinds & {Kind.ROWS, Kind.SHIFTED} and kinds & {Kind.MEAN, Kind.SHIFTED}:
        shifted = kinds <= {Kind.ROWS, Kind.SHIFTED, Kind.MEAN, Kind.SAME}
        return Kind.SHIFTED if shifted else Kind.UNKNOWN
    if Kind.ROWS_PER_COUNT in kinds:
        return Kind.ROWS_PER_COUNT if len(kinds) == 1 else Kind.UNKNOWN
    if any(kind.has_rows for kind in kinds):
        return row_wise(op)
    if Kind.OTHER in kinds:
        return Kind.OTHER
    if kinds & {Kind.MAX, Kind.MIN}:
        return next(iter(kinds)) if len(kinds) == 1 and len(op.inputs) == 1 else _shifted_extreme(op, kinds)
    if kinds == {Kind.COUNT, Kind.SAME}:
        # A count plus a small number, which avoids a division by zero.
        return Kind.OTHER if op.type == "Sub" else Kind.COUNT
    if kinds <= {Kind.MEAN, Kind.SAME}:
        return Kind.MEAN
    if kinds == {Kind.SUM, Kind.SAME} and all(_is_zero(op, i) for i, kind in enumerate(op.inputs) if kind is Kind.SAME):
        # Keras' penalties begin with 0.
        return Kind.SUM
    return Kind.SUM if kinds <= {Kind.SUM, Kind.COUNT} else Kind.MIXED


def _has_one_row(op: Op) -> bool:
    """Returns True if the replica, or its micro-batch, is known to have one row."""
    shape, axis = op.shape(0), op.layout(0).axis
    return set(op.num_rows) == {1} or (shape is not None and 0 <= axis < len(shape) and shape[axis] == 1)


def _shifted_extreme(op: Op, kinds: Collection[Kind]) -> Kind:
    """Returns the kind of the largest or smallest of rows plus a constant."""
    extremes = [kind for kind in op.inputs if kind in (Kind.MAX, Kind.MIN)]
    is_first = op.inputs[0] in (Kind.MAX, Kind.MIN)
    if len(extremes) == 1 and set(kinds) <= {extremes[0], Kind.SAME} and (is_first or op.type != "Sub"):
        return extremes[0]
    return Kind.OTHER


def _is_zero(op: Op, i: int) -> bool:
    """Returns True if an input is a constant whose elements are all 0."""
    value = op.constant(i)
    return value is not None and not value.any()


def homogeneous(op: Op) -> Kind:
    """Returns the kind of an elementwise function that keeps positive factors, such as an absolute value."""
    return Kind.ROWS_PER_COUNT if set(op.inputs) == {Kind.ROWS_PER_COUNT} else row_wise(op)


def negation(op: Op) -> Kind:
    """Returns the kind of a tensor with the other sign."""
    kind = op.inputs[0]
    return {Kind.MAX: Kind.MIN, Kind.MIN: Kind.MAX}.get(kind, kind)


def multiplication(op: Op) -> Kind:
    """Returns the kind of an elementwise product."""
    one, other = op.inputs
    if any(kind is Kind.SAME and op.output_rank == 0 and _is_zero(op, i) for i, kind in enumerate(op.inputs)):
        return Kind.SAME
    if one.is_fixed or other.is_fixed:
        kind = other if one.is_fixed else one
        if kind in (Kind.MAX, Kind.MIN):
            return Kind.OTHER
        if kind is Kind.SUM and constant_divisor(op) is Kind.AMBIGUOUS:
            return Kind.AMBIGUOUS
        return row_wise(op) if kind.is_fixed else kind
    if {one, other} == {Kind.MEAN, Kind.COUNT}:
        return Kind.SUM
    return row_wise(op)


def division(op: Op) -> Kind:
    """Returns the kind of an elementwise quotient."""
    one, other = op.inputs
    if other is Kind.SAME and one is Kind.SUM:
        other = constant_divisor(op)
        if other is Kind.AMBIGUOUS:
            return Kind.AMBIGUOUS
    if other is Kind.ROWS_PER_COUNT:
        return Kind.ROWS if one is other else Kind.UNKNOWN
    if other.is_fixed:
        return row_wise(op) if one.is_fixed else Kind.OTHER if one in (Kind.MAX, Kind.MIN) else one
    if other is Kind.COUNT and one in (Kind.SUM, Kind.ROWS, Kind.COUNT):
        return {Kind.SUM: Kind.MEAN, Kind.ROWS: Kind.ROWS_PER_COUNT, Kind.COUNT: Kind.SAME}[one]
    return row_wise(op)


def comparison(op: Op) -> Kind:
    """Returns the kind of a comparison: `SAME` for a count compared with 0, since each replica has at least one row."""
    if set(op.inputs) == {Kind.COUNT, Kind.SAME} and _is_zero(op, op.inputs.index(Kind.SAME)):
        return Kind.SAME
    return row_wise(op)


def bound(op: Op) -> Kind:
    """Returns the kind of an elementwise maximum or minimum; a count with a constant bound is still a count."""
    if Kind.COUNT in op.inputs and set(op.inputs) <= {Kind.COUNT, Kind.SAME}:
        return Kind.COUNT
    if Kind.ROWS_PER_COUNT in op.inputs:
        return Kind.UNKNOWN
    extreme = Kind.MAX if op.type == "Maximum" else Kind.MIN
    return extreme if extreme in op.inputs and set(op.inputs) <= {extreme, Kind.SAME} else row_wise(op)


def selection(op: Op) -> Kind:
    """Returns the kind of a choice between two tensors by a condition."""
    condition, *chosen = op.inputs
    if not condition.is_fixed:
        return row_wise(op)
    return addition(Op("AddV2", chosen, op.input_shapes[1:], op.output_rank, layouts=op.layouts[1:]))


def matrix_product(op: Op) -> Kind:
    """Returns the kind of a matrix product, which may sum over rows."""
    kinds = list(op.inputs[:2])
    if not any(kind.has_rows for kind in kinds):
        return multiplication(Op(op.type, kinds, output_rank=op.output_rank))
    is_summed = [kinds[i].has_rows and _is_inner(op, i) for i in range(2)]
    one, other = kinds
    if all(is_summed):
        return Kind.SUM if (one, other) == (Kind.ROWS, Kind.ROWS) else Kind.OTHER
    if any(is_summed):
        return Kind.PAIRS if one.has_rows and other.has_rows else mixing(op) if Kind.UNKNOWN in kinds else Kind.OTHER
    if one.has_rows and other.has_rows and not _are_batches(op):
        return Kind.PAIRS
    return linear(Op(op.type, kinds, output_rank=op.output_rank))


def _is_inner(op: Op, i: int) -> bool:
    """Returns True if the dimension of rows of a matrix is the one that is summed over."""
    dim = _dim_of_rows(op, i)
    if dim is None:
        return False
    flags = (("transpose_a", "adj_x"), ("transpose_b", "adj_y"))[i]
    is_turned = any(bool(op.attribute(flag)) for flag in flags)
    return dim == ((-1, -2), (-2, -1))[i][is_turned]


def _dim_of_rows(op: Op, i: int) -> int | None:
    return op.layout(i).axis - 2 if op.type == "MatMul" else op.axis_from_end(i)


def _are_batches(op: Op) -> bool:
    """Returns True if rows are along the same batch dimension of both inputs, so that each row is a matrix."""
    dims = [_dim_of_rows(op, i) for i in range(2)]
    if None in dims:
        return op.output_rank != 2
    return all(dim is not None and dim < -2 for dim in dims) and dims[0] == dims[1]


def einsum(op: Op) -> Kind:
    """Returns the kind of an einsum, which sums over rows if their label is not in the result."""
    terms, made = equation(op)
    labels = {_label(op, i, term) for i, term in enumerate(terms) if op.inputs[i].has_rows}
    kinds = set(op.inputs)
    if not labels or "." in labels or kinds & {*_FAULTY, Kind.DISTINCT}:
        return linear(op) if labels else row_wise(op) if len(terms) == 1 else multiplication_of_all(op)
    if len(labels) > 1:
        return Kind.PAIRS
    if labels <= set(made):
        return linear(Op(op.type, op.inputs, output_rank=op.output_rank))
    if any(not (kind.is_fixed or kind is Kind.ROWS) for kind in kinds):
        return Kind.OTHER
    return Kind.SUM


def multiplication_of_all(op: Op) -> Kind:
    """Returns the kind of the product of all inputs."""
    kind = op.inputs[0]
    for other in op.inputs[1:]:
        kind = multiplication(Op("Mul", (kind, other), output_rank=op.output_rank))
    return kind


def equation(op: Op) -> tuple[list[str], str]:
    """Returns the labels of each input's dimensions, and of the result's."""
    written = op.attribute("equation")
    written = written.decode() if isinstance(written, bytes) else str(written)
    taken, _, made = written.replace(" ", "").partition("->")
    return taken.split(","), made


def _label(op: Op, i: int, term: str) -> str:
    axis = op.layout(i).axis
    if "." in term[: axis + 1]:
        return "."
    return term[axis : axis + 1]


def weight_gradient(op: Op) -> Kind:
    """Returns the kind of the gradient of a tensor that all rows share, such as a filter: a sum over rows."""
    kinds = {kind for kind in op.inputs if not kind.is_fixed and kind is not Kind.SHAPE}
    return Kind.SUM if kinds == {Kind.ROWS} else mixing(op)
