"""Recomputes a number without rows from its terms, which are reduced over replicas.

Computing a number without rows from rows begins with reductions: sums, means, counts, maxima. All later operations are
arithmetic, which gives the number of one device if its terms are those of all replicas. :class:`Terms` goes from the
number back to the reductions, and runs the arithmetic a second time.

    kept.assign(0.9 * kept + sum(x) / count)      terms: sum(x), count; computed again: /, *, +
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any, Literal

import tensorflow as tf

from strategies.batches.row_dependence import RowDependence
from strategies.batches.row_kinds import Kind
from strategies.batches.row_names import ADDITIONS
from strategies.batches.row_origins import Made

How = Literal["sum", "mean", "max", "min"]

_HAVE_NO_ROWS = frozenset({Kind.SAME, Kind.MEAN, Kind.SUM, Kind.COUNT, Kind.MAX, Kind.MIN, Kind.MIXED, Kind.OTHER})
#: The largest number of operations from a number back to a term: a longer chain is not arithmetic on statistics.
_MAX_DEPTH = 60
_BY_KIND: dict[Kind, How] = {
    Kind.SUM: "sum",
    Kind.COUNT: "sum",
    Kind.MEAN: "mean",
    Kind.MAX: "max",
    Kind.MIN: "min",
}
#: Operations that put rows into positions of a tensor without rows, and the reduction of their results over replicas.
_SCATTERS: dict[str, How] = {
    "Bincount": "sum",
    "DenseBincount": "sum",
    "ScatterNd": "sum",
    "UnsortedSegmentMax": "max",
    "UnsortedSegmentMin": "min",
    "UnsortedSegmentSum": "sum",
}
_BOUNDS: dict[str, How] = {"Max": "max", "Min": "min"}
_MATRIX_PRODUCTS = ("BatchMatMulV2", "MatMul")
_UNCHANGED = ("Cast", "ExpandDims", "Identity", "Reshape", "Squeeze", "StopGradient")
_FACTORS = ("Mul", "RealDiv")


class NoTermsError(Exception):
    """A number is not computed from terms that can be reduced over replicas."""


@dataclass(frozen=True)
class Term:
    """A tensor without rows, the result of a reduction over rows.

    Attributes:
        tensor: the replica's tensor.
        how: its reduction over replicas; a mean is weighted by rows.
    """

    tensor: tf.Tensor
    how: How


class Terms:
    """The terms of one number of the running step.

    Args:
        dependence: finds how the replica's tensors depend on rows.
        value: the number, or an array without rows.

    Raises:
        NoTermsError: the value has rows, or comes from an operation on rows whose results cannot be combined over
            replicas.
    """

    def __init__(self, dependence: RowDependence, value: tf.Tensor) -> None:
        self._dependence = dependence
        self._value = value
        self._made: dict[int, Made] = {}
        self._terms: dict[int, Term] = {}
        self._kept: list[Any] = []
        self._visit(value)

    @property
    def found(self) -> list[Term]:
        """All terms, in the order in which they are found, which is the same on all replicas."""
        return list(self._terms.values())

    def recomputed(self, totals: Sequence[tf.Tensor]) -> tf.Tensor:
        """Returns the number, recomputed from the totals of the terms instead of the replica's own terms."""
        known: dict[int, tf.Tensor] = dict(zip(self._terms, totals, strict=True))

        def computed(tensor: tf.Tensor) -> tf.Tensor:
            key = id(tensor)
            if key not in known:
                made = self._made.get(key)
                known[key] = tensor if made is None else made.repeat([computed(each) for each in made.inputs])
            return known[key]

        return computed(self._value)

    def _visit(self, tensor: tf.Tensor, depth: int = 0) -> None:
        key = id(tensor)
        kind = self._dependence.kind(tensor)
        if key in self._terms or key in self._made or kind is Kind.SAME:
            return
        made = self._dependence.made(tensor)
        self._kept.append(tensor)
        if made is None or not made.inputs or (kind in _BY_KIND and self._is_marked(made)):
            # The operation is unknown or a constant, or the kind comes from a mark.
            self._terms[key] = Term(tensor, self._checked(tensor, _BY_KIND.get(kind)))
            return
        kinds = [self._dependence.kind(each) for each in made.inputs]
        how = None if all(each in _HAVE_NO_ROWS for each in kinds) else self._how(kind, made, kinds)
        if how is not None:
            self._terms[key] = Term(tensor, self._checked(tensor, how))
        elif made.is_stateful or depth > _MAX_DEPTH or all(each is Kind.SAME for each in kinds):
            raise NoTermsError
        elif made.type == "TensorScatterAdd":
            # The tensor plus the updates scattered into zeros: the latter are a term.
            base, indices, updates = made.inputs
            scattered = tf.scatter_nd(indices, updates, tf.shape(base, out_type=indices.dtype))
            self._visit(base, depth + 1)
            self._kept.append(scattered)
            self._terms[id(scattered)] = Term(scattered, self._checked(scattered, "sum"))
            self._made[key] = Made.sum_of(base, scattered)
        else:
            for each in made.inputs:
                self._visit(each, depth + 1)
            self._made[key] = made

    def _is_marked(self, made: Made) -> bool:
        """Returns True if an operation's inputs do not explain the kind of its output, which was marked."""
        return all(self._dependence.kind(each) is Kind.SAME for each in made.inputs)

    def _how(self, kind: Kind, made: Made, kinds: Sequence[Kind]) -> How | None:
        """Returns the reduction over replicas for the results of an operation on rows; None if there is none."""
        if kind in _BY_KIND:
            return _BY_KIND[kind]
        if made.type in _BOUNDS and kinds[0] is Kind.ROWS and not kind.has_rows:
            return _BOUNDS[made.type]
        if made.type in _SCATTERS and all(each is Kind.ROWS or each is Kind.SAME for each in kinds):
            return _SCATTERS[made.type]
        return "sum" if made.type in _MATRIX_PRODUCTS and self._sums_over_rows(made, kinds) else None

    def _checked(self, tensor: tf.Tensor, how: How | None) -> How:
        if how is None or (how == "mean" and not tensor.dtype.is_floating) or tensor.dtype == tf.bool:
            raise NoTermsError
        return how

    def _sums_over_rows(self, made: Made, kinds: Sequence[Kind]) -> bool:
        """Returns True for the product of a transposed matrix of rows and one of rows."""
        one = self._dependence.made(made.inputs[0])
        if list(kinds) != [Kind.ROWS, Kind.ROWS] or one is None or one.type != "Transpose":
            return False
        flags = ("transpose_a", "transpose_b", "adj_x", "adj_y")
        order = tf.get_static_value(one.inputs[1])
        return order is not None and order.tolist() == [1, 0] and not any(made.attribute(flag) for flag in flags)


def linear(
    dependence: RowDependence,
    value: Any,
    *,
    same: Callable[[Any], Any],
    mean: Callable[[tf.Tensor], tf.Tensor],
    total: Callable[[tf.Tensor], tf.Tensor],
) -> Any:
    """Returns a sum with each term replaced; terms are also found inside products with a factor of `Kind.SAME`.

    Args:
        dependence: finds how the replica's tensors depend on rows.
        value: the sum.
        same: replaces a term that is the same on all replicas.
        mean: replaces a mean over rows.
        total: replaces a sum over rows, and a count of them.

    Raises:
        NoTermsError: the value is not a sum of such terms.
    """
    kind = dependence.kind(value)
    made = dependence.made(value) if isinstance(value, tf.Tensor) else None
    go_on = {"same": same, "mean": mean, "total": total}
    if made is not None and (made.type in ADDITIONS or made.type in _UNCHANGED) and kind in _HAVE_NO_ROWS:
        first = made.inputs if made.type in ADDITIONS else made.inputs[:1]
        if first[0].dtype != value.dtype and not first[0].dtype.is_floating:
            # A count is replaced after its cast; before the cast, this only checks that it is a count.
            linear(dependence, first[0], same=refused, mean=refused, total=unchanged)
        elif all(dependence.kind(each) in _HAVE_NO_ROWS for each in first):
            parts = [linear(dependence, each, **go_on) for each in first]
            return made.repeat([*parts, *list(made.inputs)[len(parts) :]])
    if kind is Kind.SAME:
        return same(value)
    if kind in (Kind.MIXED, Kind.SUM, Kind.COUNT) and made is not None and made.type in _FACTORS:
        one, other = made.inputs
        if dependence.kind(other) is Kind.SAME:
            return made.repeat([linear(dependence, one, **go_on), other])
        if dependence.kind(one) is Kind.SAME and made.type == "Mul":
            return made.repeat([one, linear(dependence, other, **go_on)])
    if kind is Kind.MEAN:
        return mean(value)
    if kind in (Kind.SUM, Kind.COUNT):
        return total(value)
    raise NoTermsError


def refused(value: Any) -> Any:
    """Raises `NoTermsError`: for :func:`linear`, a term that is not allowed."""
    raise NoTermsError


def unchanged(value: Any) -> Any:
    """Returns a term as it is, for :func:`linear`."""
    return value
