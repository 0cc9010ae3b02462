"""Kinds of tensors, by their dependence on the rows of a batch: a mean over them, a sum, their count, and others.

A step is written for one device, which has all rows, and runs on replicas, each of which has some. The operations that
made a replica's number determine how it relates to the number that a single device would have. Each operation maps the
kinds of its inputs to the kind of its output. This module has the types and the common rules, without TensorFlow.
"""

from __future__ import annotations

import dataclasses
import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from fractions import Fraction
from typing import Any


class Kind(enum.Enum):
    """The dependence of a replica's tensor on the replica's rows.

    Attributes:
        SAME: independent of the rows; the same on all replicas.
        DRAWN: random numbers, not one per row, that each replica draws for itself.
        ROWS: has an item, or several, for each row, along one dimension.
        ROWS_PER_COUNT: ROWS divided by the number of rows.
        SHIFTED: ROWS plus a mean over rows: its mean is a mean, its sum a sum, but each item depends on all rows.
        SOME: has items for some of the rows, as selected by a mask.
        DISTINCT: the distinct values among the rows.
        PAIRS: compares rows with each other.
        MEAN: a mean over rows. Weighted by rows, the replicas' means add up to the mean of the batch.
        SUM: a sum over rows. The replicas' sums add up to the sum of the batch.
        MAX: the largest of the rows. The largest of the replicas' values is that of the batch.
        MIN: the smallest of the rows.
        COUNT: the number of rows, or a constant times it.
        SHAPE: a shape that contains the number of rows.
        MIXED: a sum of terms, some of which are sums over rows, and some not.
        AMBIGUOUS: a sum over rows divided by a constant that may be the replica's number of terms, or the batch's.
        UNKNOWN: computed from rows by an operation that mixes them, or that has no rule.
        OTHER: anything else computed from all rows: the root of a mean, a product of means.
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

    @property
    def has_rows(self) -> bool:
        """True if the tensor still has a dimension of rows."""
        return self in _WITH_ROWS

    @property
    def is_fixed(self) -> bool:
        """True if the tensor does not depend on the rows."""
        return self in (Kind.SAME, Kind.DRAWN)


_WITH_ROWS = frozenset({Kind.ROWS, Kind.ROWS_PER_COUNT, Kind.SHIFTED, Kind.SOME, Kind.PAIRS})


class Form(enum.Enum):
    """The relation of a tensor that is computed from some shards of weights to that of the whole weights.

    Attributes:
        ELEMENTS: has an item for each element of the shards.
        SUM: a sum over their elements, or linear in one: the sum of those of all shards is that of the weight.
        MAX: the largest of their elements: the largest of those of all shards is that of the weight.
        MIN: the smallest of their elements.
        OTHER: anything else, such as a norm or a mean.
    """

    ELEMENTS = enum.auto()
    SUM = enum.auto()
    MAX = enum.auto()
    MIN = enum.auto()
    OTHER = enum.auto()


#: A shard of a weight that the devices of a replica share: an id of the weight, the shard's index, and their number.
ShardId = tuple[int, int, int]


@dataclass(frozen=True)
class ShardPart:
    """The shards from which a tensor is computed, or from whose gradients; see `row_shards`.

    Attributes:
        shards: the shards, not all of those of their weights.
        form: the tensor's relation to that of the whole weights.
        has_other_terms: whether a term was added that is not computed from shards.
    """

    shards: frozenset[ShardId]
    form: Form = Form.ELEMENTS
    has_other_terms: bool = False


@dataclass(frozen=True)
class Layout:
    """The position of the rows in a tensor, and the shards from which it is computed.

    Attributes:
        axis: the dimension of the rows. For a list of tensors, the dimension in each tensor; -1 if each tensor belongs
            to one row.
        times: the number of items along `axis` per row, or for a count the factor of the number of rows; None if
            unknown.
        leading: the sizes of the dimensions that were merged with the dimension of rows, in front of it.
        summed: the sizes of dimensions within each row that were summed; None if unknown.
        is_position: whether its integers are each row's own position in the batch, or in the batch's flattened items.
        is_scaled: whether positions are those of flattened items: multiplied by their number per row.
        is_row_number: whether its integers are computed from positions of rows and constants.
        is_constant: whether each row has the same numbers, which the batch does not change, as ones of its shape.
        divided_by: `COUNT` if rows were divided by a constant that is taken for the replica's number of rows,
            `AMBIGUOUS` if they were multiplied by the inverse of one that may be it, else `SAME`.
        may_be_rows: whether it is the same on all replicas, but its first size is a replica's number of rows, and it
            may have been made with one item per row, such as ones of a static shape.
        shards: the shards of weights from which it is computed; None if there are none, or if they are complete.
    """

    axis: int = 0
    times: Fraction | None = Fraction(1)
    leading: tuple[int | None, ...] = ()
    summed: tuple[int, ...] | None = ()
    is_position: bool = False
    is_scaled: bool = False
    is_row_number: bool = False
    is_constant: bool = False
    divided_by: Kind = Kind.SAME
    may_be_rows: bool = False
    shards: ShardPart | None = None

    def with_shards(self, shards: ShardPart | None) -> Layout:
        """Returns this layout of a tensor that is computed from other shards."""
        return self if self.shards == shards else dataclasses.replace(self, shards=shards)


ROW_MAJOR = Layout()


@dataclass(frozen=True)
class Op:
    """One operation and one of its outputs, with the properties that the rules use.

    Attributes:
        type: TensorFlow's name of the operation.
        inputs: the kind of each input.
        input_shapes: the shape of each input, None if its rank is unknown.
        output_rank: the number of dimensions of the output, None if unknown.
        output: the index of the output.
        constant: returns the value of the input of an index, None if it is not known beforehand.
        attribute: returns the attribute of a name, None if there is none.
        num_rows: the numbers of rows that a replica may have at a time, as far as they are known beforehand.
        first_size: the size of the output's first dimension, None if unknown.
        layouts: the layout of each input; `ROW_MAJOR` if left out.
        output_shape: the shape of the output, None if its rank is unknown.
        num_all: the numbers of rows that the batch of all replicas may have, as far as they are known beforehand.
        is_integer: whether the output has an integer dtype.
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
        """Returns the shape of an input, None if its rank is unknown."""
        return self.input_shapes[i] if i < len(self.input_shapes) else None

    def rank(self, i: int) -> int | None:
        """Returns the number of dimensions of an input, None if unknown."""
        shape = self.shape(i)
        return None if shape is None else len(shape)

    def layout(self, i: int) -> Layout:
        """Returns the layout of an input."""
        return self.layouts[i] if i < len(self.layouts) else ROW_MAJOR

    def numbers(self, i: int) -> list[int] | None:
        """Returns the integers of an input, None if they are not known beforehand."""
        value = self.constant(i)
        return None if value is None else [int(each) for each in value.reshape(-1)]

    def axis_from_end(self, i: int) -> int | None:
        """Returns the dimension of an input's rows, counted from the last, which is -1; None if unknown."""
        rank, axis = self.rank(i), self.layout(i).axis
        return None if rank is None or axis < 0 else axis - rank


def are_across(op: Op) -> bool:
    """Returns True if inputs have rows along different dimensions, which combines each row with every other row."""
    dims = {op.axis_from_end(i) for i, kind in enumerate(op.inputs) if kind.has_rows} - {None}
    return len(dims) > 1


def row_wise(op: Op, is_linear: bool = False) -> Kind:
    """Returns the kind of an output that is computed elementwise or row by row.

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
    # Positions of rows may be compared with the number of rows.
    if kinds - with_rows - ({Kind.COUNT, Kind.SHAPE} if _has_positions(op) else {Kind.SHAPE}):
        return Kind.UNKNOWN
    if Kind.PAIRS in with_rows or are_across(op):
        return Kind.PAIRS if op.output_rank != 0 else Kind.OTHER
    if len(with_rows) == 1:
        kind = next(iter(with_rows))
        return kind if kind not in (Kind.SHIFTED, Kind.ROWS_PER_COUNT) or is_linear else Kind.UNKNOWN
    return Kind.ROWS_PER_COUNT if with_rows == {Kind.ROWS, Kind.ROWS_PER_COUNT} else Kind.UNKNOWN


def linear(op: Op) -> Kind:
    """Returns the kind of an output that is linear in the one input that depends on rows."""
    return row_wise(op, is_linear=True)


def mixing(op: Op) -> Kind:
    """Returns the kind of the output of an op that looks at several rows at a time, or may do so."""
    kinds = {kind for kind in op.inputs if not kind.is_fixed}
    if not kinds or kinds <= {Kind.SHAPE}:
        return row_wise(op)
    if Kind.AMBIGUOUS in kinds:
        return Kind.AMBIGUOUS
    if any(kind.has_rows for kind in kinds) or Kind.UNKNOWN in kinds or Kind.DISTINCT in kinds:
        return Kind.UNKNOWN
    return Kind.OTHER


def _has_positions(op: Op) -> bool:
    return any(op.layout(i).is_row_number for i, kind in enumerate(op.inputs) if kind.has_rows)


def along(
    axes: Callable[[Op], Collection[int] | None], otherwise: Callable[[Op], Kind] = row_wise
) -> Callable[[Op], Kind]:
    """Returns the rule of an operation along some dimensions: it mixes rows if the dimension of rows is one of them.

    Args:
        axes: returns these dimensions of the first input, from the front or, negative, from the end; None if unknown.
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
