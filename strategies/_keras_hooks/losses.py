"""Losses: rows weigh the same wherever they are.

Keras divides a loss by the replica's own count (of rows, of unmasked entries, of sample weights) and then by the
number of replicas. Summed over replicas, that is the loss of the global batch only if all counts are equal. Here

* every loss value ``m_r`` of replica r is formed such that ``sum over r of weight_r * m_r`` is the global value;
* its gradient is multiplied by ``weight_r``, so that the sum of gradients over replicas is the global gradient;
* what a program sees depends on who drives the step. Keras' own ``train_step`` sees ``m_r`` and averages it by
  rows. A custom ``train_step`` sees ``m_r * weight_r * num_replicas``, whose plain mean over replicas is the global
  value: on even batches just the loss of its rows. A custom loop outside the trainer sees ``m_r * weight_r``, as
  TensorFlow's convention for ``strategy.run`` has it: ``strategy.reduce("SUM", loss, axis=None)`` is global.

``Model.compute_loss`` forms its total from raw ``m_r`` and is weighed once, at the end, so terms that a subclass
adds to it are weighed alike.
"""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf
from keras.src.losses import loss as keras_loss
from keras.src.metrics import reduction_metrics as keras_mean
from keras.src.trainers import trainer as keras_trainer

from strategies import shares
from strategies._keras_hooks.wrapping import wrap

_BY_COUNT = ("sum_over_batch_size", "mean")


def install() -> None:
    """Wraps Keras' reduction and scaling of losses."""
    wrap(keras_loss, "scale_loss_for_distribution", _scale)
    wrap(keras_loss, "unscale_loss_for_distribution", _unscale)
    wrap(keras_loss, "reduce_weighted_values", _reduce)
    wrap(keras_mean.Mean, "update_state", _update_mean)
    wrap(keras_trainer.Trainer, "compute_loss", _compute_loss)
    wrap(keras_trainer.Trainer, "_compute_loss", _compute_loss_for_keras)


def watch(model_class: type) -> None:
    """Wraps the class' own ``compute_loss``, if it has one, so that all of it is weighed."""
    owner = next(cls for cls in model_class.__mro__ if "compute_loss" in vars(cls))
    wrap(owner, "compute_loss", _compute_loss)


@contextlib.contextmanager
def _raw(share: shares.Share) -> Iterator[None]:
    """Inside, losses stay raw: the caller weighs the result."""
    shares.attach(dataclasses.replace(share, raw_losses=True))
    try:
        yield
    finally:
        shares.attach(share)


def _with_gradient(value: tf.Tensor, share: shares.Share, shown: tf.Tensor) -> tf.Tensor:
    """Returns ``shown``, with the gradient of ``weight * value``."""

    @tf.custom_gradient
    def show(value: tf.Tensor) -> Any:
        return tf.identity(shown), share.weigh

    return show(value)


def _emit(value: tf.Tensor, share: shares.Share) -> tf.Tensor:
    if share.raw_losses:
        return value
    if share.in_trainer:
        return _with_gradient(value, share, _mean_form(value, share))
    return share.weigh(value)


def _mean_form(value: tf.Tensor, share: shares.Share) -> tf.Tensor:
    """Returns the number whose plain mean over the replicas is the global value."""
    return value if share.is_even else share.weigh(value) * tf.cast(share.num_replicas, value.dtype)


def _scale(original: Callable[..., Any], value: Any) -> Any:
    share = shares.current()
    return original(value) if share is None else _emit(tf.convert_to_tensor(value), share)


def _unscale(original: Callable[..., Any], value: Any) -> Any:
    share = shares.current()
    if share is None:
        return original(value)
    # Keras asks twice. For the total, it then weighs by rows itself. For each of several losses (raw), it weighs
    # by the static number of rows if there is one, else not at all.
    if share.raw_losses and not isinstance(share.weight, float):
        return _mean_form(value, share)
    return value


def _update_mean(original: Callable[..., Any], metric: Any, values: Any, sample_weight: Any = None) -> Any:
    """A mean of losses, one per step: every replica counts, since a replica without rows says 0 in mean form."""
    share = shares.current()
    if share is None or share.has_rows is True or sample_weight is not None or len(values.shape):
        return original(metric, values, sample_weight)
    shares.attach(dataclasses.replace(share, has_rows=True))
    try:
        return original(metric, values)
    finally:
        shares.attach(share)


def _reduce(
    original: Callable[..., Any],
    values: Any,
    sample_weight: Any = None,
    mask: Any = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: Any = None,
) -> Any:
    share = shares.current()
    if share is None or reduction in (None, "none"):
        return original(values, sample_weight, mask, reduction, dtype)
    with _raw(share):
        value = original(values, sample_weight, mask, reduction, dtype)
    if reduction == "sum":
        # A sum over rows needs no weight. A program outside compute_loss sees it as it is in a custom loop.
        if not share.raw_losses and not share.in_trainer:
            return value
        value = share.unweigh(value)
    else:
        count = _own_count(value.dtype, sample_weight, mask, reduction)
        if count is not None and share.num_replicas > 1:
            context = tf.distribute.get_replica_context()
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(count))
            value = share.unweigh(value * tf.math.divide_no_nan(count, total))
    return _emit(value, share)


def _own_count(dtype: Any, sample_weight: Any, mask: Any, reduction: str) -> tf.Tensor | None:
    """Returns what Keras divides this replica's loss by, where that is not proportional to rows; else None."""
    if reduction in _BY_COUNT:
        return None if mask is None else tf.reduce_sum(tf.cast(mask, dtype))
    merged = keras_loss.apply_mask(
        None if sample_weight is None else tf.cast(sample_weight, dtype), mask, dtype, reduction
    )
    return None if merged is None else tf.reduce_sum(tf.cast(merged, dtype))


def _compute_loss(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    share = shares.current()
    if share is None or share.raw_losses:
        return original(model, *args, **kwargs)
    with _raw(share):
        value = original(model, *args, **kwargs)
    return _emit(tf.convert_to_tensor(value), share)


def _compute_loss_for_keras(original: Callable[..., Any], model: Any, *args: Any, **kwargs: Any) -> Any:
    share = shares.current()
    if share is None or share.raw_losses:
        return original(model, *args, **kwargs)
    with _raw(share):
        value = tf.convert_to_tensor(original(model, *args, **kwargs))
    return _with_gradient(value, share, value)
