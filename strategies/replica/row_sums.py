"""Sums over the replicas of a step and over micro-batches. Replicas with only dummy rows add zero.

A micro-batch's term of the batch is marked as what it is: a constant, a mean over rows, or a weighted gradient.

Sums are tested in ``tests/keras_ext/expert/test_data_parallel.py``, terms in
``tests/keras_ext/pipeline/test_losses.py`` and ``tests/keras_ext/pipeline/test_parity.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark, mark_summed
from strategies.batches.row_warnings import warn_of


def sum_over_replicas(value: Any) -> tf.Tensor:
    """Returns the sum over all replicas, without a gradient; the value itself outside of replicas."""
    context = tf.distribute.get_replica_context()
    if context is None or context.num_replicas_in_sync == 1:
        return tf.stop_gradient(value)
    return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(value))


def sum_over_rows(value: Any) -> tf.Tensor:
    """Returns the sum over the replicas, without a gradient. Replicas that have dummy rows only count as 0.

    The sum is a factor that is the same on all replicas: a mean or a sum over rows times it stays one.

    Args:
        value: counts, or other sums over the replica's rows, in floating point.
    """
    return mark_summed(tf.identity(sum_over_replicas(_own_rows_or_zeros(value))))


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


def as_constant(value: Any) -> Any:
    """Marks a tensor as a factor that is independent of the rows' content, such as their number; returns it."""
    return mark(value, Kind.SAME)


def as_mean_over_rows(value: Any) -> Any:
    """Marks a tensor as a mean over this replica's rows, combined from micro-batches; returns it."""
    return mark(value, Kind.MEAN)


def as_weighed(upstream: Any) -> Any:
    """Returns the gradient of a loss, times the weight of this replica's rows in the batch of Keras' trainer."""
    share = shares.current()
    return upstream if share is None or not share.in_trainer else share.weigh(upstream)


def as_mean(loss: Any, rows_share: Any) -> Any:
    """Returns a loss that a layer added in a micro-batch as a term of a mean weighted by rows.

    Args:
        loss: the added loss; a sum over rows is divided by the micro-batch's share of the rows.
        rows_share: the micro-batch's share of this replica's rows; float or float scalar.
    """
    kind = shares.current_dependence().kind(loss)
    warn_of(kind, "A loss that a layer adds")
    if kind is not Kind.SUM:
        return mark(tf.identity(loss), Kind.MEAN)
    return mark(tf.math.divide_no_nan(loss, tf.cast(rows_share, loss.dtype)), Kind.SUM)
