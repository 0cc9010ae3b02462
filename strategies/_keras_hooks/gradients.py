"""Gradients: a step's own loss is one over the rows of the batch.

A step of a model's own, written for one device, takes the gradient of a loss of its rows, and replicas' gradients are
summed. The sum is that of the batch if each is the gradient of ``weight_r * m_r`` for a mean over rows ``m_r``, and of
a sum over rows as it is. Which of the two a loss is shows in how it was made (``row_dependence``). Penalties of
weights, the same on all replicas, count as means: the weights of all replicas add up to 1.

Only in steps of Keras' trainer. In a loop of the user's own, TensorFlow's convention holds: losses are to add up.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies._keras_hooks.wrapping import engine_of, wrap
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_warnings import warn_of
from strategies.replica.passes import differentiates_passes

#: Weighed. The last two, too, which is nearest to what is meant, but a warning says so.
_AS_MEANS = (Kind.MEAN, Kind.SAME, Kind.MIXED, Kind.OTHER)


def install() -> None:
    """Wraps TensorFlow's two ways to ask for a gradient: on it, Keras has none of its own."""
    wrap(tf.GradientTape, "gradient", _gradient)
    wrap(tf, "gradients", _gradients)


def _gradient(
    original: Callable[..., Any],
    tape: tf.GradientTape,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    _note_gradient()
    upstream = _upstream(target) if output_gradients is None else output_gradients
    return original(tape, target, sources, upstream, *args, **kwargs)


def _gradients(original: Callable[..., Any], ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kwargs: Any) -> Any:
    _note_gradient()
    return original(ys, xs, _upstream(ys) if grad_ys is None else grad_ys, *args, **kwargs)


def _note_gradient() -> None:
    """Tells a strategy that gathers weights where a backward pass begins."""
    engine = engine_of(tf.distribute.get_strategy())
    if engine is not None and engine.sharded_weights is not None:
        engine.sharded_weights.gathers.note_gradient(is_last=not differentiates_passes())


def _upstream(target: Any) -> Any:
    """Returns what gradients of `target` are to be multiplied by, in its structure; None for nothing."""
    share = shares.current()
    if share is None or not share.in_trainer or share.num_replicas == 1:
        return None
    flat = tf.nest.flatten(target)
    if any(not isinstance(leaf, tf.Tensor) for leaf in flat):
        return None
    kinds = [share.dependence.kind(leaf) for leaf in flat]
    for kind in kinds:
        warn_of(kind, "The loss of which a gradient is taken here")
    if not any(kind in _AS_MEANS for kind in kinds):
        return None
    ones = [tf.ones_like(leaf) for leaf in flat]
    weighed = [share.weigh(one) if kind in _AS_MEANS else one for one, kind in zip(ones, kinds, strict=True)]
    return tf.nest.pack_sequence_as(target, weighed)
