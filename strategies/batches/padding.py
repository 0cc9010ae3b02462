"""Batches that are padded to the size of the largest one before, for functions that are compiled for each size anew."""

from __future__ import annotations

from collections.abc import Sequence

import tensorflow as tf

from strategies._tf_internals import ResourceVariable


def size_variable() -> tf.Variable:
    """Returns the size of the largest batch so far, on the host: 0. The same under every strategy, and in no model."""
    with tf.init_scope(), tf.device("CPU:0"):
        # Of this class, strategies make no copies.
        return ResourceVariable(0, trainable=False, dtype=tf.int32, name="largest_batch")


def pad(tensors: Sequence[tf.Tensor], largest: tf.Variable) -> tuple[list[tf.Tensor], tf.Tensor]:
    """Returns tensors of as many rows as the largest batch so far had, and how many of these are their own.

    Rows that are added are copies of the last one, so that they can be computed like any other.

    Args:
        tensors: of the same number of rows, at least one.
        largest: see :func:`size_variable`; is updated.
    """
    with tf.device("CPU:0"):
        own = tf.shape(tensors[0])[0]
        size = tf.maximum(largest.read_value(), own)
        largest.assign(size, read_value=False)
        is_small = tf.less(own, size)

    def padded() -> list[tf.Tensor]:
        rows = tf.minimum(tf.range(size), own - 1)
        return [tf.gather(each, rows) for each in tensors]

    def as_they_are() -> list[tf.Tensor]:
        return [tf.identity(each) for each in tensors]

    return list(tf.cond(is_small, padded, as_they_are)), own
