"""Optimizers and adapted layers where a replica spans processes: each process updates the variables that it owns.

Every process builds the optimizer with all variables of the model, and is given all of them in every step. A variable
that only other processes own has no gradient, no value and no slots in this process. All processes decide together
whether a step is skipped after an overflow. A `Normalization` that others own is not adapted here.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import optimizer as keras_tf_optimizer
from keras.src.optimizers import base_optimizer, loss_scale_optimizer

from strategies._keras_hooks.sharded_optimizers import sharded_updates
from strategies._keras_hooks.whole_updates import shards_of
from strategies._keras_hooks.wrapping import spanning_parts, wrap
from strategies.collectives.loopback import LOOPBACK
from strategies.replica.deferred import is_remote
from strategies.replica.owners import is_owned
from strategies.replica.weight_slices import WeightSlice


def install() -> None:
    """Wraps the check for overflow, the loops over all variables of a model, and the end of a layer's adaptation."""
    wrap(loss_scale_optimizer.LossScaleOptimizer, "check_finite", _check_finite)
    wrap(base_optimizer.BaseOptimizer, "_update_model_variables_moving_average", _for_owned)
    wrap(keras_tf_optimizer.TFOptimizer, "_overwrite_model_variables_with_average_value", _for_owned)
    wrap(keras.layers.Normalization, "finalize_state", _finalize, in_step=False)


def apply_owned(
    optimizer: keras.Optimizer,
    apply: Callable[[Sequence[Any], Sequence[Any] | None], Any],
    gradients: Sequence[Any],
    variables: Sequence[Any] | None,
) -> Any:
    """Calls an optimizer's ``apply`` with the gradients and variables that this process owns.

    With ``variables=None``, gradients are those of all variables that the optimizer was built with.
    """
    if (spanning_parts() is None and sharded_updates() is None) or not gradients:
        return apply(gradients, variables)
    known = optimizer._trainable_variables if variables is None else variables
    pairs = [(g, v) for g, v in zip(gradients, known, strict=True) if _is_owned(v)]
    if any(gradient is not None for gradient, _ in pairs):
        return apply([gradient for gradient, _ in pairs], [variable for _, variable in pairs])
    return _apply_nothing(optimizer)


def _apply_nothing(optimizer: keras.Optimizer) -> None:
    """Runs a step without gradients: takes part in the sums of norms, updates moving averages and counts the step."""
    steps = optimizer.gradient_accumulation_steps
    if steps:
        is_due = tf.equal((optimizer._iterations + 1) % steps, 0)
        tf.cond(is_due, lambda: _clip_nothing(optimizer), lambda: None)
    else:
        _clip_nothing(optimizer)
    if optimizer.use_ema:
        optimizer._update_model_variables_moving_average(optimizer._trainable_variables)
    optimizer._iterations.assign_add(1)


def _clip_nothing(optimizer: keras.Optimizer) -> None:
    optimizer._clip_gradients([])


def _check_finite(
    original: Callable[..., tf.Tensor], optimizer: keras.Optimizer, grads: Sequence[Any]
) -> tf.Tensor | bool:
    total = sum_over_owners()
    if total is None:
        return original(optimizer, grads)
    own = [gradient for gradient in grads if gradient is not None]
    overflow = tf.logical_not(original(optimizer, own)) if own else tf.constant(False)
    return tf.equal(total(tf.cast(overflow, tf.int32)), 0)


def _is_owned(variable: Any) -> bool:
    return variable.is_owned if isinstance(variable, WeightSlice) else is_owned(variable)


def sum_over_owners() -> Callable[[tf.Tensor], tf.Tensor] | None:
    """Returns a function that sums over the owners of parts of the updated variables; None if this process owns all."""
    parts, sharded = spanning_parts(), sharded_updates()
    group = LOOPBACK if sharded is None else sharded.process_group
    if parts is None and group.num_processes == 1:
        return None

    def total(value: tf.Tensor) -> tf.Tensor:
        if parts is not None:
            value = parts.groups.sum_over_replica(value)
        return group.sum([value])[0]

    return total


class _Seen:
    """A view of an optimizer with only some of its moving averages."""

    def __init__(self, optimizer: keras.Optimizer, averages: Sequence[Any]) -> None:
        self._optimizer = optimizer
        self._model_variables_moving_average = averages

    def __getattr__(self, name: str) -> Any:
        return getattr(self._optimizer, name)


def _for_owned(original: Callable[..., None], optimizer: keras.Optimizer, trainable_variables: Sequence[Any]) -> None:
    """Calls the original with only the variables, or shards, that this process owns, and with their moving averages."""
    if not optimizer.use_ema or (spanning_parts() is None and sharded_updates() is None):
        return original(optimizer, trainable_variables)
    pairs = [
        (shard, own)
        for variable, average in zip(trainable_variables, optimizer._model_variables_moving_average, strict=True)
        if average is not None
        for shard, own in zip(shards_of(variable), shards_of(average), strict=True)
        if _is_owned(shard)
    ]
    return original(_Seen(optimizer, [own for _, own in pairs]), [shard for shard, _ in pairs])


def _finalize(original: Callable[[Any], None], layer: Any) -> None:
    """Turns the variables of a `Normalization` into constants; see `tests/strategies/processes/spanning_pipe.py`."""
    if not layer.built or layer.input_mean is not None or not is_remote(layer.adapt_mean):
        original(layer)
        return
    # Only the shapes matter: this process never computes the layer.
    layer.mean = tf.zeros(layer._broadcast_shape, layer.compute_dtype)
    layer.variance = tf.ones(layer._broadcast_shape, layer.compute_dtype)
