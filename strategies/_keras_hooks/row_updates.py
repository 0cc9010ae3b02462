"""Adagrad updates of a row-sharded table that compute only with the rows that were looked up.

Adagrad changes neither a row without a gradient nor its accumulator. Keras adds the slices of a sparse gradient only to
their rows, but then takes the square root of the accumulator of all rows, and compares each with zero, to divide a few
rows. For a table with millions of rows that is nearly all of a step. Here Keras' own method computes with the rows that
have slices: the same operations on the same numbers.

SGD without momentum already adds slices only to their rows. Others, such as Adam, also change rows without gradients.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from strategies._tf_internals import get_update_replica_id
from strategies.replica.row_views import RowView
from strategies.sharding.variables import is_row_sharded


def update_rows(
    optimizer: keras.optimizers.Adagrad, update_step: Callable[..., None], gradient: Any, variable: Any, rate: Any
) -> None:
    """Updates one variable by Keras' ``update_step``, with only the rows that have a gradient where that is the same.

    Args:
        optimizer: the optimizer.
        update_step: Keras' method.
        gradient: a tensor or ``IndexedSlices``.
        variable: the variable, or a slice.
        rate: the learning rate.
    """
    # With accumulator and epsilon both zero, Keras divides by zero also in rows without gradients: kept as it is.
    is_shard = getattr(variable, "is_shard", False) and is_row_sharded(variable.variable)
    if not (is_shard and isinstance(gradient, tf.IndexedSlices) and optimizer.epsilon > 0):
        update_step(gradient, variable, rate)
        return
    accumulator = optimizer._accumulators[optimizer._get_variable_index(variable)]
    with tf.device(variable.device):
        rows, indices = tf.unique(gradient.indices)
        own = tf.IndexedSlices(gradient.values, indices, tf.stack([tf.size(rows), *variable.shape[1:]]))
        with _viewed(accumulator, rows):
            update_step(own, RowView(variable.component, rows, variable._unique_id), rate)


@contextlib.contextmanager
def _viewed(slot: Any, rows: tf.Tensor) -> Iterator[None]:
    """Context manager: a slot of Keras' optimizer consists of these rows only."""
    whole = slot._value
    slot._value = RowView(whole.values[get_update_replica_id() or 0], rows)
    try:
        yield
    finally:
        slot._value = whole
