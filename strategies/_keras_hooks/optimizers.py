"""Optimizers: gradients are reduced first, then the optimizer runs unchanged on every device.

Keras reduces gradients at the end of ``apply``: after unscaling them, checking them for overflow, clipping them and
adding them up over micro-steps, all of which it did to one replica's part. It also meets the other replicas inside
conditionals, which TensorFlow refuses. Reducing at the very start of ``apply`` cures both, for every optimizer and
for optimizers wrapped in others: an inner ``apply`` finds itself outside any replica and passes straight through.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.optimizers import base_optimizer, loss_scale_optimizer, multi_optimizer

from strategies._keras_hooks.wrapping import engine_of, wrap
from strategies._tf_internals import get_update_replica_id


def install() -> None:
    """Wraps the optimizers' ``apply`` and ``apply_gradients``."""
    # A user's optimizer may override `apply` and work on the gradients there: the trainer's calls go through
    # apply_gradients, which nobody overrides, so it is wrapped as well.
    wrap(base_optimizer.BaseOptimizer, "apply_gradients", _apply_gradients)
    for owner in (
        base_optimizer.BaseOptimizer,
        loss_scale_optimizer.LossScaleOptimizer,
        multi_optimizer.MultiOptimizer,
    ):
        wrap(owner, "apply", _apply)
    wrap(loss_scale_optimizer.LossScaleOptimizer, "_tf_apply", _tf_apply)


def _reduce_first(optimizer: Any, gradients: Any, variables: Any, update: Callable[[list[Any]], Any]) -> Any:
    """Calls ``update`` with global gradients: once where there are no replicas, else once per device."""
    engine = engine_of(tf.distribute.get_strategy())
    if engine is None or get_update_replica_id() is not None:
        return update(gradients)

    def across(strategy: tf.distribute.Strategy, gradients: list[Any]) -> Any:
        if not optimizer.built and variables is not None:
            with tf.init_scope():
                optimizer.build(variables)
        return engine.update_replicas(gradients, update)

    context = tf.distribute.get_replica_context()
    if context is None:
        return across(tf.distribute.get_strategy(), list(gradients))
    return context.merge_call(across, args=(list(gradients),))


def _apply(original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    variables = None if trainable_variables is None else list(trainable_variables)
    return _reduce_first(optimizer, grads, variables, lambda summed: original(optimizer, summed, variables))


def _apply_gradients(original: Callable[..., Any], optimizer: Any, grads_and_vars: Any) -> Any:
    pairs = list(grads_and_vars)
    variables = [variable for _, variable in pairs]
    return _reduce_first(
        optimizer,
        [gradient for gradient, _ in pairs],
        variables,
        lambda summed: original(optimizer, list(zip(summed, variables, strict=True))),
    )


def _tf_apply(original: Callable[..., Any], optimizer: Any, grads: Any, trainable_variables: Any = None) -> Any:
    if get_update_replica_id() is None:
        return original(optimizer, grads, trainable_variables)
    # Keras refuses to run outside a replica, because it could not reduce there. The gradients are reduced.
    return optimizer._common_apply(grads, trainable_variables=trainable_variables)
