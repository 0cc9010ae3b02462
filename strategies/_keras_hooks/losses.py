"""Losses: each row has the same weight, whatever its replica.

Keras divides a loss by the replica's own count (of rows, of unmasked entries, of sample weights) and then by the
number of replicas. Summed over replicas, that is the loss of the global batch only if all counts are equal. Here

* every loss value ``m_r`` of replica r is formed such that ``sum over r of weight_r * m_r`` is the global value;
* in a step of Keras' trainer, the program sees ``m_r``, as on one device. Weights apply where values of replicas are
  combined: in gradients (``gradients``), so that their sum is the global gradient, in means of scalars
  (``trackers``) and in the step's results (``steps.outputs``);
* in a custom loop the program sees ``weight_r * m_r``, following TensorFlow's convention for ``strategy.run``:
  ``strategy.reduce("SUM", loss, axis=None)`` is the global value.

``Model.compute_loss`` forms its total from raw ``m_r``, so terms that a subclass adds to it are weighted alike. A loss
that a layer adds may be a sum over rows: it is divided by the weight first.
"""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks import gathered_functions
from strategies._keras_hooks.addresses import Trainer, keras_loss, keras_losses
from strategies._keras_hooks.keras_versions import LOSS_MODULES
from strategies._keras_hooks.wrapping import Rest, wrap
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.batches.row_warnings import warn_of, warn_of_mixed_rows

_BY_COUNT = ("sum_over_batch_size", "mean")


def install() -> None:
    """Wraps Keras' reduction and scaling of losses."""
    wrap(keras_loss, "scale_loss_for_distribution", _scale)
    wrap(keras_loss, "unscale_loss_for_distribution", _unscale)
    for module in LOSS_MODULES:
        wrap(module, "reduce_weighted_values", _reduce)
    wrap(keras_losses, "convert_binary_labels_to_hinge", _as_signs)


def _as_signs(original: Callable[[tf.Tensor], tf.Tensor], y_true: tf.Tensor) -> tf.Tensor:
    """Converts labels 0 and 1 to -1 and 1, per row: Keras' check of all labels finds the same on each replica."""
    dependence = shares.known_dependence()
    signs = original(y_true)
    return signs if dependence is None else mark(signs, dependence.kind(y_true))


def wrap_compute_loss(model: keras.Model) -> None:
    """Wraps ``compute_loss`` in the program's class that overrides it, so that the whole result is weighted."""
    owner = next(cls for cls in model.__class__.__mro__ if "compute_loss" in vars(cls))
    # `DistributedModel` overrides Keras' own.
    if owner is not Trainer:
        wrap(owner, "compute_loss", _overridden)


def _overridden(original: Callable[..., tf.Tensor], model: keras.Model, *args: Any, **kwargs: Any) -> tf.Tensor:
    return compute_loss(functools.partial(original, model), model, *args, **kwargs)


def _emit(value: tf.Tensor, share: shares.Share) -> tf.Tensor:
    """Returns ``m_r`` as the program sees it: raw, or weighted in a custom loop."""
    if share.num_replicas == 1:
        return value
    if share.raw_losses or share.in_trainer:
        return mark(tf.identity(value), Kind.MEAN)
    return mark(share.weigh(value), Kind.SUM)


def _scale(original: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor) -> tf.Tensor:
    share = shares.current()
    if gathered_functions.has_all_rows():
        # A global value is not one term of a sum over replicas.
        return value
    return original(value) if share is None else _emit(tf.convert_to_tensor(value), share)


def _unscale(original: Callable[[tf.Tensor], tf.Tensor], value: tf.Tensor) -> tf.Tensor:
    # Keras calls it in its own steps, where losses have not been scaled.
    return original(value) if shares.current() is None else value


def _reduce(
    original: Callable[..., tf.Tensor],
    values: tf.Tensor,
    sample_weight: tf.Tensor | None = None,
    mask: tf.Tensor | None = None,
    reduction: str | None = "sum_over_batch_size",
    dtype: tf.DType | None = None,
) -> tf.Tensor:
    share = shares.current()
    if share is None or reduction in (None, "none"):
        return original(values, sample_weight, mask, reduction, dtype)
    with shares.changed(raw_losses=True):
        value = original(values, sample_weight, mask, reduction, dtype)
    is_plain = sample_weight is None and mask is None and reduction in _BY_COUNT
    is_warned = gathered_functions.check_loss(share, values, value, is_plain)
    if len(values.shape) == 0:
        # The loss function itself has reduced its values.
        if share.num_replicas > 1 and not is_warned:
            kind, dependence = share.dependence.kind(value), share.dependence
            warn_of(kind, "What a loss function returns, one number for all rows,", value, dependence)
        return _emit(share.as_mean(value), share)
    if reduction == "sum":
        # A sum over rows needs no weight. In a custom loop, a program outside compute_loss gets it unchanged.
        if not share.raw_losses and (not share.in_trainer or shares.is_in_microbatches()):
            return value
        value = share.unweigh(value)
    else:
        count = _own_count(value.dtype, sample_weight, mask, reduction)
        if count is not None and share.num_replicas > 1:
            if share.in_inner_function:
                raise ValueError(
                    "A loss with a mask, or with reduction='mean_with_sample_weight', divides by a count over all "
                    "replicas, which a tf.function inside the replica's step cannot ask for. Call the loss outside of "
                    "that tf.function, or pass the tf.function itself to strategy.run."
                )
            context = tf.distribute.get_replica_context()
            total = context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(count))
            value = share.unweigh(value * tf.math.divide_no_nan(count, total))
    return _emit(value, share)


def _own_count(
    dtype: tf.DType, sample_weight: tf.Tensor | None, mask: tf.Tensor | None, reduction: str
) -> tf.Tensor | None:
    """Returns the divisor that Keras uses for this replica's loss; None if it is proportional to the number of rows."""
    if reduction in _BY_COUNT:
        return None if mask is None else tf.reduce_sum(tf.cast(mask, dtype))
    merged = keras_loss.apply_mask(
        None if sample_weight is None else tf.cast(sample_weight, dtype), mask, dtype, reduction
    )
    return None if merged is None else tf.reduce_sum(tf.cast(merged, dtype))


def compute_loss(
    original: Callable[Rest, tf.Tensor], model: keras.Model, *args: Rest.args, **kwargs: Rest.kwargs
) -> tf.Tensor:
    """Returns the loss of a replica's rows, weighted as the module says.

    Args:
        original: ``compute_loss`` of the model's class or of Keras.
        model: the model.
        *args: the arguments of `original`.
        **kwargs: the arguments of `original`.
    """
    share = shares.current()
    if share is None or share.raw_losses:
        return original(*args, **kwargs)
    predicted: Any = kwargs.get("y_pred", args[2] if len(args) > 2 else None)
    if share.num_replicas > 1 and share.in_trainer:
        dependence = shares.current_dependence()
        if warn_of_mixed_rows(predicted, dependence, f"What {model.name!r} computes for a row"):
            dependence.take_as_rows(predicted)
    with shares.changed(raw_losses=True):
        value = tf.convert_to_tensor(original(*args, **kwargs))
    if share.num_replicas > 1:
        subject = f"What compute_loss of {type(model).__name__} returns"
        warn_of(share.dependence.kind(value), subject, value, share.dependence)
    return _emit(share.as_mean(value), share)


def add_loss(original: Callable[[tf.Tensor], tf.Tensor], model: keras.Model, loss: tf.Tensor) -> tf.Tensor:
    """Returns a loss that a layer adds as a term of the model's loss; ``original`` is Keras' own conversion."""
    share = shares.current()
    if share is None or share.num_replicas == 1:
        return original(loss)
    warn_of(share.dependence.kind(loss), f"A loss that a layer of {model.name!r} adds", loss, share.dependence)
    return original(share.as_mean(loss))
