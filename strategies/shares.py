"""A replica's share of the global batch: how many rows it holds, and what they weigh.

Keras gives every replica the mean over its own rows and then 1/N of the vote, so that the rows of a replica that
got fewer weigh more. Here a replica's vote is its part of the rows: ``weight = rows / rows of all replicas``. The
weighted mean of per-replica means is then the mean over the global batch, exactly.

A replica without rows (a batch smaller than the number of replicas) still runs, since all replicas run the same
program. It borrows one row from replica 0, votes with weight 0, and what it writes or returns counts for nothing.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica

_ATTRIBUTE = "_keras_strategies_share"


@dataclasses.dataclass(frozen=True)
class Share:
    """One replica's share of the step that is being run or traced.

    Attributes:
        replica_id: index on the data axis.
        num_replicas: size of the data axis.
        weight: rows here / rows of all replicas; float, or float32 scalar where the batch size is not static.
        has_rows: whether any row is the replica's own; bool, or bool scalar tensor.
        in_trainer: whether Keras' trainer (``fit``, ``evaluate``, ...) drives the step, not the user's own loop.
        raw_losses: whether losses are left as they are, because the caller weighs their total.
    """

    replica_id: int
    num_replicas: int
    weight: float | tf.Tensor
    has_rows: bool | tf.Tensor
    in_trainer: bool
    raw_losses: bool = False

    @property
    def is_even(self) -> bool:
        """Whether it is known beforehand that all replicas weigh the same."""
        return isinstance(self.weight, float) and self.weight * self.num_replicas == 1.0

    def keep(self, value: Any, otherwise: Any) -> Any:
        """Returns ``value`` if this replica has rows of its own, else ``otherwise`` (same shape and dtype)."""
        if isinstance(self.has_rows, bool):
            return value if self.has_rows else otherwise
        return tf.where(self.has_rows, value, otherwise)

    def weigh(self, value: tf.Tensor) -> tf.Tensor:
        """Returns ``value * weight``, in the dtype of ``value``."""
        return value * tf.cast(self.weight, value.dtype)

    def unweigh(self, value: tf.Tensor) -> tf.Tensor:
        """Returns ``value / weight``, and 0 where the weight is 0."""
        return tf.math.divide_no_nan(value, tf.cast(self.weight, value.dtype))


def attach(share: Share) -> None:
    """Makes ``share`` what :func:`current` returns for the rest of this replica's function.

    It hangs on the replica context, which TensorFlow makes anew for every call of ``Strategy.run`` and carries
    into nested graphs, so nothing outlives the call.
    """
    setattr(tf.distribute.get_replica_context(), _ATTRIBUTE, share)


def current() -> Share | None:
    """Returns the share of the replica that is running, or None outside ``Strategy.run`` of this package."""
    return getattr(tf.distribute.get_replica_context(), _ATTRIBUTE, None)


def divide(rows: Sequence[int | tf.Tensor] | None, num_replicas: int, in_trainer: bool) -> list[Share]:
    """Returns every replica's share.

    Args:
        rows: per replica its number of rows (int where static, else int32 scalar); None where the step's
            arguments hold no batch: every replica then weighs the same.
        num_replicas: size of the data axis.
        in_trainer: see :class:`Share`.
    """
    even = 1.0 / num_replicas
    weights: list[float | tf.Tensor] = [even] * num_replicas
    present: list[bool | tf.Tensor] = [True] * num_replicas
    if num_replicas == 1:
        rows = None
    if rows is not None and all(isinstance(n, int) for n in rows):
        total = sum(rows)
        if total:
            weights = [n / total for n in rows]
            present = [n > 0 for n in rows]
    elif rows is not None:
        total = tf.cast(tf.add_n([tf.convert_to_tensor(n) for n in rows]), tf.float32)
        weights = [tf.math.divide_no_nan(tf.cast(n, tf.float32), total) for n in rows]
        present = [n > 0 if isinstance(n, int) else tf.greater(n, 0) for n in rows]
    return [Share(r, num_replicas, weights[r], present[r], in_trainer) for r in range(num_replicas)]


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


def is_batch(value: Any) -> bool:
    """Whether ``value`` is a tensor (dense, ragged or sparse) whose first dimension can be rows."""
    if not isinstance(value, (tf.Tensor, tf.RaggedTensor, tf.SparseTensor)):
        return False
    return bool(value.shape.rank is None or value.shape.rank > 0)


def rows_of(structure: Any, num_replicas: int) -> list[int | tf.Tensor] | None:
    """Returns per replica the number of rows of the first batch in ``structure``, or None if there is none."""
    for leaf in tf.nest.flatten(structure):
        if isinstance(leaf, PerReplica) and len(leaf.values) == num_replicas and is_batch(leaf.values[0]):
            return [n for value in leaf.values if (n := num_rows(value)) is not None]
    return None


def take_rows(value: Any, begin: int | tf.Tensor, end: int | tf.Tensor) -> Any:
    """Returns rows ``begin`` to ``end`` of a dense, ragged or sparse tensor."""
    if not isinstance(value, tf.SparseTensor):
        return value[begin:end]
    begin, end = tf.cast(begin, tf.int64), tf.cast(end, tf.int64)
    start = tf.concat([[begin], tf.zeros_like(value.dense_shape[1:])], axis=0)
    size = tf.concat([[end - begin], value.dense_shape[1:]], axis=0)
    return tf.sparse.slice(value, start, size)


def lend_rows(structure: Any, num_replicas: int) -> Any:
    """Gives every empty batch in ``structure`` one row of replica 0's; the rest passes through uncopied."""

    def lend(leaf: Any) -> Any:
        if not (isinstance(leaf, PerReplica) and len(leaf.values) == num_replicas):
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

    return tf.nest.map_structure(lend, structure)


def void_outputs(structure: Any, shares: Sequence[Share]) -> Any:
    """Makes what replicas without rows return count for nothing.

    A borrowed row's output (first dimension 1) is cut to no rows, so that gathering skips it; any other number
    becomes 0, so that summing skips it. Scalars that Keras' trainer averages stay: losses among them weigh 0 already.
    """
    if all(share.has_rows is True for share in shares):
        return structure

    def void(share: Share, value: Any) -> Any:
        if not isinstance(value, tf.Tensor) or value.dtype == tf.string:
            return value
        if share.has_rows is True or (share.in_trainer and value.shape.rank == 0):
            return value
        if value.shape.rank == 0:
            return share.keep(value, tf.zeros_like(value))

        def nothing() -> tf.Tensor:
            rows = tf.shape(value)[0]
            return tf.zeros_like(value)[: tf.where(tf.equal(rows, 1), 0, rows)]

        if share.has_rows is False:
            return nothing()
        return tf.cond(share.has_rows, lambda: value, nothing)

    def void_leaf(leaf: Any) -> Any:
        if not (isinstance(leaf, PerReplica) and len(leaf.values) == len(shares)):
            return leaf
        return PerReplica(tuple(void(s, v) for s, v in zip(shares, leaf.values, strict=True)))

    return tf.nest.map_structure(void_leaf, structure)
