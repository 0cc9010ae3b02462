"""Sums over the replicas of a step. Replicas with only dummy rows add zero.

Tested in ``tests/keras_ext/expert/test_data_parallel.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark, mark_summed


def sum_over_replicas(value: Any) -> tf.Tensor:
    """Returns the sum over all replicas, without a gradient; the value itself outside of replicas."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tf.stop_gradient(value)
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(value))


def sum_over_rows(value: Any) -> tf.Tensor:
    """Returns the sum over the replicas, without a gradient. Replicas that have dummy rows only count as 0.

    The sum is a factor that is the same on all replicas: a mean or a sum over rows times it stays one. In one of
    several micro-batches it is only a part of the sum over the batch, and such a product is neither.

    Args:
        value: counts, or other sums over the replica's rows, in floating point.
    """
    total = tf.identity(sum_over_replicas(_own_rows_or_zeros(value)))
    return mark_summed(total) if shares.num_microbatches() == 1 else mark(total, Kind.SUM)


def sum_over_rows_before(value: Any) -> tf.Tensor:
    """Returns the sum over the replicas whose rows come before this replica's rows in the global batch.

    Args:
        value: the same as for :func:`sum_over_rows`.
    """
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tf.zeros_like(value)
    share = shares.current()
    index = context.replica_id_in_sync_group if share is None else share.value_on_replica(lambda replica: replica)
    number = context.num_replicas_in_sync
    # A sum to which each replica contributes one row: for a few numbers, an all-gather is not faster.
    own = tf.reshape(tf.one_hot(index, number, dtype=value.dtype), [number, *[1] * len(value.shape)])
    every = sum_over_replicas(own * _own_rows_or_zeros(value)[None])
    return tf.reduce_sum(every[:index], axis=0)


def _own_rows_or_zeros(value: Any) -> Any:
    """Returns ``value``, or zeros if the replica has only dummy rows, which are copies of another replica's."""
    share = shares.current()
    return value if share is None else share.keep(value, tf.zeros_like(value))
