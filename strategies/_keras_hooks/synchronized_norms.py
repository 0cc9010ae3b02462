"""``BatchNormalization(synchronized=True)``: the sums of one layer are one message each way, forward and backward.

Keras asks for three sums over all replicas one by one: of the values, of their squares, and their number.

Without ``synchronized`` the layer looks at the rows of its replica, as is documented: that is no finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import nn as keras_tf_nn
from keras.src.layers.normalization import batch_normalization

from strategies._keras_hooks.wrapping import Rest, engine_of, wrap
from strategies.batches import shares
from strategies.batches.row_dependence import mark
from strategies.batches.row_kinds import Kind

_SUM = tf.distribute.ReduceOp.SUM
_Moments = tuple[tf.Tensor, tf.Tensor]


def install() -> None:
    """Wraps the mean and variance over all replicas, and the layer."""
    wrap(keras_tf_nn, "_compute_moments_sync", _moments)
    wrap(batch_normalization.BatchNormalization, "call", _call)


def _call(
    original: Callable[Concatenate[keras.layers.BatchNormalization, tf.Tensor, Rest], tf.Tensor],
    layer: keras.layers.BatchNormalization,
    inputs: tf.Tensor,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> tf.Tensor:
    outputs = original(layer, inputs, *args, **kwargs)
    dependence = shares.known_dependence()
    if dependence is not None and dependence.kind(inputs) is Kind.ROWS:
        mark(outputs, Kind.ROWS)
    return outputs


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
