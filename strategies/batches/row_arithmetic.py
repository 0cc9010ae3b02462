"""Rules of sums, means and arithmetic: the kind of what they make, see `row_kinds`."""

from __future__ import annotations

from collections.abc import Callable

from strategies.batches.row_kinds import Kind, Op, of_unknown


def _dims(op: Op) -> list[int] | None:
    """The dimensions that a reduction goes over, counted from the front; None if not known."""
    wanted, rank = op.constant(1), op.rank(0)
    if wanted is None:
        return None
    dims = [int(dim) for dim in wanted.reshape(-1)]
    if rank is None:
        # The first dimension may still be known not to be among them.
        return dims if all(dim >= 0 for dim in dims) else None
    return [dim % rank for dim in dims]


def reduction(of_rows: Kind, of_shared: Kind, is_linear: bool = True) -> Callable[[Op], Kind]:
    """Returns the rule of a reduction: what it makes of rows, and of rows that are divided by their number."""

    def rule(op: Op) -> Kind:
        kind = op.inputs[0]
        if not kind.has_rows:
            return kind if is_linear and kind is not Kind.SHAPE else Kind.OTHER
        dims = _dims(op)
        if op.output_rank != 0 and (dims is None or 0 not in dims):
            return Kind.OTHER if dims is None else kind
        return {Kind.ROWS: of_rows, Kind.ROWS_PER_COUNT: of_shared}.get(kind, Kind.OTHER)

    return rule


#: The rule of reductions of which the replicas' results cannot be put together.
not_linear = reduction(Kind.OTHER, Kind.OTHER, is_linear=False)


def product(op: Op) -> Kind:
    """All elements of a shape, multiplied, are as many as there are elements."""
    return Kind.COUNT if op.inputs[0] in (Kind.SHAPE, Kind.COUNT) else not_linear(op)


def l2_loss(op: Op) -> Kind:
    """Half the sum of squares."""
    return Kind.SUM if op.inputs[0] is Kind.ROWS else Kind.OTHER


def addition(op: Op) -> Kind:
    """Sums and differences of terms."""
    kinds = set(op.inputs)
    if kinds & {Kind.ROWS, Kind.ROWS_PER_COUNT, Kind.PAIRS, Kind.SHAPE}:
        return of_unknown(op)
    if Kind.OTHER in kinds:
        return Kind.OTHER
    if kinds == {Kind.COUNT, Kind.SAME}:
        # Plus a small number, so that nothing is divided by zero.
        return Kind.OTHER if op.type == "Sub" else Kind.COUNT
    if kinds <= {Kind.MEAN, Kind.SAME}:
        return Kind.MEAN
    if kinds == {Kind.SUM, Kind.SAME} and all(_is_zero(op, i) for i, kind in enumerate(op.inputs) if kind is Kind.SAME):
        # Keras' penalties begin so.
        return Kind.SUM
    return Kind.SUM if kinds <= {Kind.SUM, Kind.COUNT} else Kind.MIXED


def _is_zero(op: Op, i: int) -> bool:
    """True if an input is a constant of which all numbers are 0."""
    value = op.constant(i)
    return value is not None and not value.any()


def multiplication(op: Op) -> Kind:
    """Products, number by number."""
    one, other = op.inputs
    if one is Kind.SAME or other is Kind.SAME:
        return other if one is Kind.SAME else one
    if {one, other} == {Kind.MEAN, Kind.COUNT}:
        return Kind.SUM
    return of_unknown(op) if one.has_rows or other.has_rows else Kind.OTHER


def division(op: Op) -> Kind:
    """Quotients, number by number."""
    one, other = op.inputs
    if other is Kind.SAME and one in (Kind.SUM, Kind.ROWS) and _counts_rows(op):
        other = Kind.COUNT
    if other is Kind.SAME:
        return one
    if other is Kind.COUNT:
        return {Kind.SUM: Kind.MEAN, Kind.ROWS: Kind.ROWS_PER_COUNT, Kind.COUNT: Kind.SAME}.get(one, Kind.OTHER)
    return of_unknown(op) if one.has_rows or other.has_rows else Kind.OTHER


def _counts_rows(op: Op) -> bool:
    """True if a constant divisor is a multiple of the number of rows, which the program found in a shape."""
    divisor = op.constant(1)
    if divisor is None or divisor.size != 1:
        return False
    number = float(divisor.reshape(()))
    # Also times the size of each row; of one row all numbers would be multiples.
    return any(number == 1 if count == 1 else number % count == 0 for count in op.num_rows)


def bound(op: Op) -> Kind:
    """The larger, or the smaller, of two: of a count and a constant, still the count."""
    return Kind.COUNT if set(op.inputs) == {Kind.COUNT, Kind.SAME} else of_unknown(op)


def selection(op: Op) -> Kind:
    """One of two, by a condition."""
    condition, *chosen = op.inputs
    if condition is not Kind.SAME:
        return of_unknown(op)
    return addition(Op("AddV2", chosen, op.input_shapes[1:], op.output_rank))


def matrix_product(op: Op) -> Kind:
    """Products of matrices, which may sum over rows."""
    one, other = op.inputs[:2]
    if not (one.has_rows or other.has_rows):
        return multiplication(Op(op.type, (one, other), output_rank=op.output_rank))
    if op.rank(0) != 2:
        return of_unknown(op)
    over_rows_of_one = one.has_rows and bool(op.attribute("transpose_a"))
    over_rows_of_other = other.has_rows and not op.attribute("transpose_b")
    if over_rows_of_one and over_rows_of_other:
        return Kind.SUM if (one, other) == (Kind.ROWS, Kind.ROWS) else Kind.OTHER
    if over_rows_of_one or over_rows_of_other:
        return Kind.OTHER if not (one.has_rows and other.has_rows) else Kind.PAIRS
    return Kind.PAIRS if one.has_rows and other.has_rows else of_unknown(op)


def einsum(op: Op) -> Kind:
    """Sums of products by an equation: over rows, if their label is gone from the result."""
    equation = op.attribute("equation")
    equation = equation.decode() if isinstance(equation, bytes) else str(equation)
    taken, _, made = equation.replace(" ", "").partition("->")
    labels = {terms[:1] for terms, kind in zip(taken.split(","), op.inputs, strict=False) if kind.has_rows}
    if not labels or "." in labels:
        return of_unknown(op)
    if len(labels) > 1:
        return Kind.PAIRS
    if labels <= set(made):
        return of_unknown(op)
    return Kind.SUM if Kind.ROWS_PER_COUNT not in op.inputs and Kind.PAIRS not in op.inputs else Kind.OTHER
