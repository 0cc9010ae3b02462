"""The dependence of a number on the rows of a batch: a mean over them, a sum, their count, or nothing of the kind.

A step is written for one device, which has all rows, and runs on replicas, which have some each. The relation of a
replica's number to the one that a single device would have follows from the operations that made it. Each operation
maps the kinds of its inputs to the kind of its output; this is the table of operations, without TensorFlow.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


class Kind(enum.Enum):
    """The dependence of a replica's tensor on the replica's rows.

    Attributes:
        SAME: not at all: the same on all replicas.
        DRAWN: random numbers, not for rows, that each replica draws for itself.
        ROWS: has something for each row, along one dimension.
        ROWS_PER_COUNT: the same, divided by the number of rows.
        SHIFTED: the same, plus a mean over rows: its mean is a mean, its sum a sum, but a row of it looks at all rows.
        SOME: has something for some of the rows, as a mask chose them.
        DISTINCT: what appears among the rows, each once.
        PAIRS: compares rows with each other.
        MEAN: a mean over rows. Weighed by rows, those of the replicas add up to that of the batch.
        SUM: a sum over rows. Those of the replicas add up to that of the batch.
        MAX: the largest of the rows. The largest of the replicas' is that of the batch.
        MIN: the smallest of the rows.
        COUNT: the number of rows, or a constant times it.
        SHAPE: a shape that has the number of rows in it.
        MIXED: a sum of terms, some of which are sums over rows, and some not.
        AMBIGUOUS: a sum over rows divided by a constant, which may be the replica's number of terms, or the batch's.
        UNKNOWN: made of rows by an operation that mixes them, or that no rule knows.
        OTHER: anything else made of all rows: the root of a mean, a product of means.
        SHARD: the gradient of a shard of a weight, of which this process has all shards: see `row_shards`.
        SHARD_APART: the same, where other processes have the other shards.
        SHARD_NUMBER: made of all numbers of such a gradient, as a norm.
    """

    SAME = enum.auto()
    DRAWN = enum.auto()
    ROWS = enum.auto()
    ROWS_PER_COUNT = enum.auto()
    SHIFTED = enum.auto()
    SOME = enum.auto()
    DISTINCT = enum.auto()
    PAIRS = enum.auto()
    MEAN = enum.auto()
    SUM = enum.auto()
    MAX = enum.auto()
    MIN = enum.auto()
    COUNT = enum.auto()
    SHAPE = enum.auto()
    MIXED = enum.auto()
    AMBIGUOUS = enum.auto()
    UNKNOWN = enum.auto()
    OTHER = enum.auto()
    SHARD = enum.auto()
    SHARD_APART = enum.auto()
    SHARD_NUMBER = enum.auto()

    @property
    def has_rows(self) -> bool:
        """True if the rows are still there, side by side."""
        return self in _WITH_ROWS

    @property
    def is_fixed(self) -> bool:
        """True of what is no function of the rows."""
        return self in (Kind.SAME, Kind.DRAWN)


_WITH_ROWS = frozenset({Kind.ROWS, Kind.ROWS_PER_COUNT, Kind.SHIFTED, Kind.SOME, Kind.PAIRS})


@dataclass(frozen=True)
class Layout:
    """The place of the rows in a tensor that has some.

    Attributes:
        axis: the dimension of the rows. Of a list of tensors, that of each; -1 where each tensor is a row's.
        times: the number of items along `axis` for each row, or of a count the factor before the number of rows; None
            where it is not known.
        leading: the sizes of the dimensions that have been joined with that of the rows and come before it.
        summed: the sizes of dimensions that each row had and that were summed; None where they are not known.
        is_position: whether its integers count rows.
        may_count: whether it is a constant, or a shape, that was read from a shape that begins with as many items as a
            replica has rows.
        may_be_rows: whether it is the same on all replicas, but has as many items as a replica has rows and may have
            been made for each of them, as ones in a shape that is known.
    """

    axis: int = 0
    times: Fraction | None = Fraction(1)
    leading: tuple[int | None, ...] = ()
    summed: tuple[int, ...] | None = ()
    is_position: bool = False
    may_be_rows: bool = False
    may_count: bool = False


ROW_MAJOR = Layout()


@dataclass(frozen=True)
class Op:
    """One operation, as far as the rules look at it.

    Attributes:
        type: its name, as TensorFlow has it.
        inputs: the kind of each input.
        input_shapes: their shapes, None where nothing is known.
        output_rank: the number of dimensions of the output asked for, None where not known.
        output: which output is asked for.
        constant: gives the value of an input, None if it is not known beforehand.
        attribute: gives an attribute, None if there is none of that name.
        num_rows: that there are at a time, those of them that are known beforehand.
        first_size: that of the first dimension of the output, if known.
        layouts: of each input the place of its rows; along the first dimension, if left out.
        output_shape: that of the output asked for, None where nothing is known.
        num_all: the numbers of rows that the batch of all replicas may have, as far as they are known beforehand.
        is_integer: whether the output has integers.
    """

    type: str
    inputs: Sequence[Kind]
    input_shapes: Sequence[Sequence[int | None] | None] = ()
    output_rank: int | None = None
    output: int = 0
    constant: Callable[[int], Any] = lambda i: None
    attribute: Callable[[str], Any] = lambda name: None
    num_rows: Collection[int] = ()
    first_size: int | None = None
    layouts: Sequence[Layout] = ()
    output_shape: Sequence[int | None] | None = None
    num_all: Collection[int] = ()
    is_integer: bool = False

    def shape(self, i: int) -> Sequence[int | None] | None:
        """The shape of an input, None where nothing is known."""
        return self.input_shapes[i] if i < len(self.input_shapes) else None

    def rank(self, i: int) -> int | None:
        """The number of dimensions of an input, None where not known."""
        shape = self.shape(i)
        return None if shape is None else len(shape)

    def layout(self, i: int) -> Layout:
        """The place of the rows in an input."""
        return self.layouts[i] if i < len(self.layouts) else ROW_MAJOR

    def numbers(self, i: int) -> list[int] | None:
        """The integers of an input, None if they are not known beforehand."""
        value = self.constant(i)
        return None if value is None else [int(each) for each in value.reshape(-1)]

    def axis_from_end(self, i: int) -> int | None:
        """The dimension of an input's rows, counted from the last, which is -1; None where not known."""
        rank, axis = self.rank(i), self.layout(i).axis
        return None if rank is None or axis < 0 else axis - rank


def are_across(op: Op) -> bool:
    """True if rows of several inputs lie along different dimensions, so that each meets each."""
    places = {op.axis_from_end(i) for i, kind in enumerate(op.inputs) if kind.has_rows} - {None}
    return len(places) > 1


def row_wise(op: Op, is_linear: bool = False) -> Kind:
    """The kind of what is computed number by number, or row by row.

    Args:
        is_linear: whether the result is linear in the one input that depends on rows.
    """
    kinds = {kind for kind in op.inputs if not kind.is_fixed}
    if not kinds:
        return Kind.DRAWN if Kind.DRAWN in op.inputs else Kind.SAME
    for sticky in (Kind.UNKNOWN, Kind.AMBIGUOUS):
        if sticky in kinds:
            return sticky
    with_rows = {kind for kind in kinds if kind.has_rows}
    if not with_rows:
        if kinds <= {Kind.SHAPE, Kind.COUNT} and Kind.SHAPE in kinds:
            return Kind.SHAPE
        return Kind.DISTINCT if kinds == {Kind.DISTINCT} else Kind.OTHER
    # Numbers of rows are compared with positions.
    if kinds - with_rows - ({Kind.COUNT, Kind.SHAPE} if _has_positions(op) else {Kind.SHAPE}):
        return Kind.UNKNOWN
    if Kind.PAIRS in with_rows or are_across(op):
        return Kind.PAIRS if op.output_rank != 0 else Kind.OTHER
    if len(with_rows) == 1:
        kind = next(iter(with_rows))
        return kind if kind is not Kind.SHIFTED or is_linear else Kind.UNKNOWN
    return Kind.ROWS_PER_COUNT if with_rows == {Kind.ROWS, Kind.ROWS_PER_COUNT} else Kind.UNKNOWN


def linear(op: Op) -> Kind:
    """The kind of what is linear in the one input that depends on rows."""
    return row_wise(op, is_linear=True)


def mixing(op: Op) -> Kind:
    """The kind of what looks at several rows at a time, or may do so."""
    kinds = {kind for kind in op.inputs if not kind.is_fixed}
    if not kinds or kinds <= {Kind.SHAPE}:
        return row_wise(op)
    if Kind.AMBIGUOUS in kinds:
        return Kind.AMBIGUOUS
    if any(kind.has_rows for kind in kinds) or Kind.UNKNOWN in kinds or Kind.DISTINCT in kinds:
        return Kind.UNKNOWN
    return Kind.OTHER


def _has_positions(op: Op) -> bool:
    return any(op.layout(i).is_position for i, kind in enumerate(op.inputs) if kind.has_rows)


def along(
    axes: Callable[[Op], Collection[int] | None], otherwise: Callable[[Op], Kind] = row_wise
) -> Callable[[Op], Kind]:
    """Returns the rule of an operation along dimensions: it mixes rows, if theirs is one of them.

    Args:
        axes: gives the dimensions of the first input, from the front or, negative, from the end; None if not known.
        otherwise: the rule along other dimensions.
    """

    def rule(op: Op) -> Kind:
        found = axes(op)
        axis, rank = op.layout(0).axis, op.rank(0)
        if found is None:
            return mixing(op)
        own = {axis} if rank is None else {axis, axis - rank}
        return mixing(op) if axis >= 0 and op.inputs[0].has_rows and own & set(found) else otherwise(op)

    return rule
