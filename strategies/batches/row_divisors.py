"""Recognises constants that are, or may be, a replica's number of rows: a program read it from a static shape."""

from __future__ import annotations

import itertools
import math

from strategies.batches.row_kinds import Kind, Op
from strategies.batches.row_names import PRODUCTS

#: The relative error of the inverse of a number in float32, with room to spare.
_ROUNDING = 1e-6
#: Smaller numbers are no inverses of a number of rows.
_SMALLEST = 1e-12


def constant_divisor(op: Op) -> Kind:
    """Returns the kind of a constant divisor: `COUNT` if it is the replica's number of summed terms, else `SAME`.

    It is `AMBIGUOUS` if it may also be the global batch's number. A program that reads the number of rows from a static
    shape gets a plain number, that of its replica. A program that knows the batch size from elsewhere, as TensorFlow's
    tutorial does, divides by that of the global batch.

    A constant factor that is the inverse of the replica's number is `AMBIGUOUS`, too, because programs scale losses
    more often than they divide them. One of two digits, such as 0.5 or 0.05, is taken for such a scale.
    """
    is_factor = op.type in PRODUCTS
    at = op.inputs.index(Kind.SAME) if is_factor and Kind.SAME in op.inputs else 1
    number, summed = _number(op, at), op.layout(1 - at).summed
    if number is None:
        return Kind.SAME
    if is_factor:
        inverse = float(round(1 / number))
        is_scale = abs(number - float(f"{number:.2g}")) < _ROUNDING * abs(number)
        is_inverse = abs(number * inverse - 1) < _ROUNDING and not is_scale
        may_count = is_inverse and any(_is_count(inverse, rows, summed) for rows in op.num_rows)
        return Kind.AMBIGUOUS if may_count else Kind.SAME
    own = any(_is_count(number, rows, summed) for rows in op.num_rows)
    of_all = any(_is_count(number, rows, summed) for rows in op.num_all)
    if own and of_all:
        return Kind.AMBIGUOUS
    return Kind.COUNT if own else Kind.SAME


def _number(op: Op, i: int) -> float | None:
    """Returns the value of an input that is one real number, neither 0 nor infinite; None for any other."""
    if any(size != 1 for size in op.shape(i) or ()):
        return None
    constant = op.constant(i)
    if constant is None or constant.size != 1 or constant.dtype.kind == "c":
        return None
    number = float(constant.reshape(()))
    return number if math.isfinite(number) and abs(number) > _SMALLEST else None


def _is_count(number: float, rows: int, summed: tuple[int, ...] | None) -> bool:
    """Returns True if a number is `rows` times the sizes of none, some or all of the dimensions that were summed."""
    if not rows or number % rows:
        return False
    times = int(number) // rows
    if summed is None or times == 1:
        return True
    chosen = (subset for n in range(1, len(summed) + 1) for subset in itertools.combinations(summed, n))
    return any(math.prod(each) == times for each in chosen)
