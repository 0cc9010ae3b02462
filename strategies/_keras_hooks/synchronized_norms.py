"""``BatchNormalization(synchronized=True)``: the sums of one layer are one message each way, forward and backward.

Keras asks for three sums over all replicas one by one: of the values, of their squares, and their number.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import nn as keras_tf_nn

from strategies._keras_hooks.wrapping import engine_of, wrap

_SUM = tf.distribute.ReduceOp.SUM
_Moments = tuple[tf.Tensor, tf.Tensor]


def install() -> None:
    """Wraps the mean and variance over all replicas."""
    wrap(keras_tf_nn, "_compute_moments_sync", _moments)


def _moments(original: Callable[..., _Moments], x: tf.Tensor, axes: Sequence[int], keepdims: bool) -> _Moments:
    context: Any = tf.distribute.get_replica_context()
    if context is None or engine_of(context.strategy) is None:
        return original(x, axes, keepdims)
    # Keras' arithmetic, for the same bits.
    count = tf.reduce_sum(tf.ones_like(x), axis=axes, keepdims=True)
    total = tf.reduce_sum(x, axis=axes, keepdims=True)
    squares = tf.reduce_sum(tf.square(x), axis=axes, keepdims=True)
    total, squares, count = context.all_reduce(_SUM, [total, squares, count])
    # A number of entries has no gradient.
    count = tf.stop_gradient(count)
    mean = tf.math.divide_no_nan(total, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
    return (mean, variance) if keepdims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))
