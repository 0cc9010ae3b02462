"""``BatchNormalization(synchronized=True)``: one all-reduce per layer for the forward pass, one for the backward pass.

Keras all-reduces three sums one by one: of the values, of their squares, and their number.

Without ``synchronized``, the layer normalizes over the rows of its replica, as documented: that is not a finding.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, Concatenate

import keras
import tensorflow as tf

from strategies._keras_hooks.addresses import BatchNormalization, tf_nn
from strategies._keras_hooks.wrapping import Rest, wrap
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.engine.engine import engine_of

_SUM = tf.distribute.ReduceOp.SUM
_Moments = tuple[tf.Tensor, tf.Tensor]


def install() -> None:
    """Wraps the computation of mean and variance over all replicas, and the layer's call."""
    wrap(tf_nn, "_compute_moments_sync", _moments)
    wrap(BatchNormalization, "call", _call)


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
    # The same arithmetic as Keras', for bit-equal results.
    count = tf.reduce_sum(tf.ones_like(x), axis=axes, keepdims=True)
    total = tf.reduce_sum(x, axis=axes, keepdims=True)
    squares = tf.reduce_sum(tf.square(x), axis=axes, keepdims=True)
    total, squares, count = context.all_reduce(_SUM, [total, squares, count])
    # The number of entries has no gradient.
    count = tf.stop_gradient(count)
    mean = tf.math.divide_no_nan(total, count)
    variance = tf.maximum(tf.math.divide_no_nan(squares, count) - tf.square(mean), 0.0)
    return (mean, variance) if keepdims else (tf.squeeze(mean, axes), tf.squeeze(variance, axes))
