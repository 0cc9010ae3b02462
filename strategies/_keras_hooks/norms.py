"""Gradients of split weights, clipped each by its norm: by that of the whole weight's gradient."""

from __future__ import annotations

import contextvars
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf
from keras.src.optimizers import base_optimizer

from strategies._keras_hooks.wrapping import wrap
from strategies.replica.splitting import weight_of

# The variables of the gradients that are being applied, those without a gradient left out, as Keras does it.
_applied: contextvars.ContextVar[Sequence[Any]] = contextvars.ContextVar("keras_strategies_applied", default=())


def install() -> None:
    """Wraps the clipping, and what chooses the gradients to clip: clipping itself is not told of variables."""
    wrap(base_optimizer.BaseOptimizer, "_filter_empty_gradients", _filter)
    wrap(base_optimizer.BaseOptimizer, "_clip_gradients", _clip)


def _filter(original: Callable[..., Any], optimizer: Any, grads: Any, variables: Any) -> Any:
    grads, variables = original(optimizer, grads, variables)
    _applied.set(variables)
    return grads, variables


def _clip(original: Callable[..., Any], optimizer: Any, grads: Any) -> Any:
    weights = [weight_of(variable) for variable in _applied.get()]
    if not (optimizer.clipnorm and optimizer.clipnorm > 0) or not any(weights) or len(weights) != len(grads):
        return original(optimizer, grads)
    clipped = original(optimizer, grads)
    for weight in dict.fromkeys(weight for weight in weights if weight is not None):
        own = [i for i, other in enumerate(weights) if other is weight]
        squares = []
        for i in own:
            with tf.device(_values(grads[i]).device):
                squares.append(tf.reduce_sum(tf.square(_values(grads[i]))))
        norm = tf.sqrt(tf.add_n(squares))
        scale = optimizer.clipnorm / tf.maximum(norm, optimizer.clipnorm)
        for i in own:
            with tf.device(_values(grads[i]).device):
                clipped[i] = _scaled(grads[i], scale)
    return clipped


def _values(gradient: Any) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _scaled(gradient: Any, scale: tf.Tensor) -> Any:
    values = _values(gradient)
    scaled = values * tf.cast(scale, values.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled, gradient.indices, gradient.dense_shape)
    return scaled
