"""Adagrad updates the rows of a sharded table that were looked up, and computes with no others.

A row without a gradient stays as it is under Adagrad, and so does its accumulator. Keras adds the slices of a sparse
gradient to their rows only, but then takes the square root of the accumulator of all rows, and looks at each for zeros,
to divide a few rows by theirs. Of a table with millions of rows that is nearly all of a step. Here Keras' own method
computes with the rows that have slices: the same operations on the same numbers.

SGD without momentum adds slices to their rows as it is. The others, such as Adam, change rows without gradients, too.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers import adagrad

from strategies._keras_hooks.wrapping import wrap
from strategies._tf_internals import get_update_replica_id
from strategies.engine.row_sharded_variables import is_row_sharded
from strategies.replica.row_views import RowView
from strategies.replica.weight_slices import StoredSlice


def install() -> None:
    """Wraps the update of one variable by Adagrad."""
    wrap(adagrad.Adagrad, "update_step", _update_step)


def _update_step(
    original: Callable[..., None], optimizer: keras.optimizers.Adagrad, gradient: Any, variable: Any, learning_rate: Any
) -> None:
    # Keras divides by zero where there is neither an accumulator nor an epsilon, in rows without gradients, too.
    by_row = isinstance(gradient, tf.IndexedSlices) and isinstance(variable, StoredSlice) and optimizer.epsilon > 0
    if not by_row or not is_row_sharded(variable.variable):
        original(optimizer, gradient, variable, learning_rate)
        return
    accumulator = optimizer._accumulators[optimizer._get_variable_index(variable)]
    with tf.device(variable.device):
        rows, places = tf.unique(gradient.indices)
        own = tf.IndexedSlices(gradient.values, places, tf.stack([tf.size(rows), *variable.shape[1:]]))
        with _viewed(accumulator, rows):
            original(optimizer, own, RowView(variable.component, rows, variable._unique_id), learning_rate)


@contextlib.contextmanager
def _viewed(slot: Any, rows: tf.Tensor) -> Iterator[None]:
    """Inside, a slot of Keras has these rows only."""
    whole = slot._value
    slot._value = RowView(whole.values[get_update_replica_id() or 0], rows)
    try:
        yield
    finally:
        slot._value = whole
