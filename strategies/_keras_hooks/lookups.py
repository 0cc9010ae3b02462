"""Lookups of rows in tables on a parameter device: only the rows leave that device.

Keras reads the whole table on the replica's device, then takes the rows. On one device that costs nothing; here it
would copy the table to each compute device in each step, and need memory for it there.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.common.stateless_scope import in_stateless_scope
from keras.src.backend.tensorflow import numpy as keras_tf_numpy

from strategies._keras_hooks.wrapping import wrap
from strategies.engine.central import CentralVariable


def install() -> None:
    """Wraps ``take``, which `keras.layers.Embedding` calls."""
    wrap(keras_tf_numpy, "take", _take)


def _take(original: Callable[..., Any], x: Any, indices: Any, axis: int | None = None) -> Any:
    table = x
    if isinstance(x, keras.Variable) and not in_stateless_scope():
        table = x._value
    if not isinstance(table, CentralVariable) or axis != 0 or isinstance(indices, (tf.SparseTensor, tf.RaggedTensor)):
        return original(x, indices, axis)
    positions = tf.convert_to_tensor(indices)
    # As in Keras: negative indices count from the end.
    positions = tf.where(positions < 0, positions + tf.cast(table.shape[0], positions.dtype), positions)
    rows = table.sparse_read(positions)
    # In mixed precision, Keras casts the table. Casting only the rows has the same result.
    return tf.cast(rows, x.dtype) if isinstance(x, keras.Variable) else rows
