"""The dependence of a number on the rows of a batch: a mean over them, a sum, their count, or nothing of the kind.

A step is written for one device, which has all rows, and runs on replicas, which have some each. The relation of a
replica's number to the one that a single device would have follows from the operations that made it. Each operation
maps the kinds of its inputs to the kind of its output; this is the table of operations, without TensorFlow.
"""

from __future__ import annotations

import enum
from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any


class Kind(enum.Enum):
    """The dependence of a replica's tensor on the replica's rows.

    Attributes:
        SAME: not at all: the same on all replicas.
        ROWS: has something for each row, along its first dimension.
        ROWS_PER_COUNT: the same, divided by the number of rows.
        PAIRS: compares rows with each other.
        MEAN: a mean over rows. Weighed by rows, those of the replicas add up to that of the batch.
        SUM: a sum over rows. Those of the replicas add up to that of the batch.
        COUNT: the number of rows, or a constant times it.
        SHAPE: a shape that has the number of rows in it.
        MIXED: a sum of terms, some of which are sums over rows, and some not.
        OTHER: anything else made of all rows: a maximum, a product of means.
        UNIQUE: the values that rows have, each of them once.
    """

    SAME = enum.auto()
    ROWS = enum.auto()
    ROWS_PER_COUNT = enum.auto()
    PAIRS = enum.auto()
    MEAN = enum.auto()
    SUM = enum.auto()
    COUNT = enum.auto()
    SHAPE = enum.auto()
    MIXED = enum.auto()
    OTHER = enum.auto()
    UNIQUE = enum.auto()

    @property
    def has_rows(self) -> bool:
        """True if the rows are still there, side by side."""
        return self in (Kind.ROWS, Kind.ROWS_PER_COUNT, Kind.PAIRS)


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

    def rank(self, i: int) -> int | None:
        """The number of dimensions of an input, None where not known."""
        shape = self.input_shapes[i]
        return None if shape is None else len(shape)


def of_unknown(op: Op) -> Kind:
    """Without a rule, what an operation makes of rows has rows, unless it has no dimension left for them."""
    if Kind.PAIRS in op.inputs:
        return Kind.OTHER if op.output_rank == 0 else Kind.PAIRS
    if Kind.ROWS_PER_COUNT in op.inputs and op.output_rank != 0:
        return Kind.ROWS_PER_COUNT
    if any(kind in (Kind.ROWS, Kind.SHAPE, Kind.ROWS_PER_COUNT) for kind in op.inputs):
        return Kind.OTHER if op.output_rank == 0 else Kind.ROWS
    return Kind.OTHER
