"""Counts and slices the rows of batches.

A batch is a dense, ragged or sparse tensor; its first dimension is that of its rows.
"""

from __future__ import annotations

import dataclasses
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.batches.portions import Portion


@dataclasses.dataclass(frozen=True)
class Rows:
    """The numbers of rows of a global batch.

    Attributes:
        local: the number of each local replica's own rows; int where static, else int32 scalar.
        total: rows of all replicas of all processes; None where this process does not know it.
        is_cut: whether this package split a global batch among replicas, as evenly as possible.
    """

    local: tuple[int | tf.Tensor, ...]
    total: int | tf.Tensor | None = None
    is_cut: bool = False

    def local_total(self) -> int | tf.Tensor:
        """Returns the rows of this process, int32 scalar where not static."""
        static = [n for n in self.local if isinstance(n, int)]
        if len(static) == len(self.local):
            return sum(static)
        return tf.add_n([tf.convert_to_tensor(n, tf.int32) for n in self.local])

    def with_total(self, total: int | tf.Tensor) -> Rows:
        """Returns a copy with `total`."""
        return dataclasses.replace(self, total=total)


def num_rows(value: Any) -> int | tf.Tensor | None:
    """Returns the size of the first dimension (int where static, else int32 scalar); None for a scalar."""
    shape = value.shape
    if shape.rank == 0:
        return None
    if shape.rank is not None and shape[0] is not None:
        return int(shape[0])
    if isinstance(value, tf.RaggedTensor):
        return tf.cast(value.nrows(), tf.int32)
    if isinstance(value, tf.SparseTensor):
        return tf.cast(value.dense_shape[0], tf.int32)
    return tf.shape(value)[0]


def is_tensor(value: Any) -> bool:
    """Returns True if ``value`` is a tensor of any kind."""
    return isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor))


def is_batch(value: Any) -> bool:
    """Returns True if ``value`` is a tensor (dense, ragged or sparse) whose first dimension can be rows."""
    return is_tensor(value) and bool(value.shape.rank is None or value.shape.rank > 0)


def rows_of(structure: Any, num_local: int) -> Rows | None:
    """Returns the number of rows of the first batch in ``structure``, or None if there is none."""
    for leaf in tf.nest.flatten(structure):
        if not isinstance(leaf, PerReplica) or len(leaf.values) != num_local or not is_batch(leaf.values[0]):
            continue
        if not isinstance(leaf, Portion):
            return Rows(tuple(n for value in leaf.values if (n := num_rows(value)) is not None))
        if leaf.static_rows is not None:
            return Rows(leaf.static_rows[:-1], leaf.static_rows[-1], is_cut=True)
        return Rows(tuple(tf.unstack(leaf.num_own, num_local)), leaf.num_all, is_cut=True)
    return None


def take_rows(value: Any, begin: int | tf.Tensor, end: int | tf.Tensor) -> Any:
    """Returns rows ``begin`` to ``end`` of a dense, ragged or sparse tensor."""
    if not isinstance(value, tf.SparseTensor):
        return value[begin:end]
    begin, end = tf.cast(begin, tf.int64), tf.cast(end, tf.int64)
    start = tf.concat([[begin], tf.zeros_like(value.dense_shape[1:])], axis=0)
    size = tf.concat([[end - begin], value.dense_shape[1:]], axis=0)
    return tf.sparse.slice(value, start, size)


def add_dummy_rows(structure: Any, num_replicas: int) -> Any:
    """Gives every empty batch in ``structure`` replica 0's first row as a dummy row; copies nothing else."""

    def filled(leaf: Any) -> Any:
        # A portion already got its dummy rows when the batch was split.
        if not isinstance(leaf, PerReplica) or isinstance(leaf, Portion) or len(leaf.values) != num_replicas:
            return leaf
        values = list(leaf.values)
        for r in range(1, num_replicas):
            if not is_batch(values[r]):
                continue
            rows = num_rows(values[r])
            if isinstance(rows, int):
                values[r] = values[r] if rows else take_rows(values[0], 0, 1)
            else:
                own = values[r]
                values[r] = tf.cond(tf.greater(rows, 0), lambda own=own: own, lambda: take_rows(values[0], 0, 1))
        return PerReplica(tuple(values))

    return tf.nest.map_structure(filled, structure)
