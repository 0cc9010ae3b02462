"""Optimizers: gradients are reduced first, then the optimizer runs unchanged on every device.

Keras reduces gradients at the end of ``apply``: after it has unscaled them, checked them for overflow, clipped them and
accumulated them over micro-steps, all on one replica's part. It also runs collectives inside conditionals, which
TensorFlow refuses. Reducing at the very start of ``apply`` solves both problems, for every optimizer and for optimizers
wrapped in others: an inner ``apply`` runs outside any replica and passes straight through.

In a step of Keras' trainer most gradients are those of the global batch already (``gradients``), and only those that
are still terms of a sum are summed: ``applied_gradients`` distinguishes them.
"""

from __future__ import annotations

import contextlib
import contextvars
import functools
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import optimizer as keras_tf_optimizer
from keras.src.optimizers import base_optimizer, loss_scale_optimizer

from strategies._keras_hooks import applied_gradients, optimizer_variables, sharded_optimizers, train_steps, weights
from strategies._keras_hooks.keras_versions import WRAPPING_OPTIMIZERS
from strategies._keras_hooks.owned_variables import apply_owned
from strategies._keras_hooks.whole_updates import needs_whole, shards_of, whole_pairs
from strategies._keras_hooks.wrapping import Result, wrap
from strategies._tf_internals import get_update_replica_id
from strategies.engine.central import making_optimizer_state
from strategies.engine.engine import engine_of
from strategies.engine.gradient_sync import Accumulation
from strategies.replica.overwritten import is_overwritten
from strategies.replica.splitting import SplitWeight
from strategies.replica.weight_identity import named_as_shard, named_as_wholes
from strategies.replica.weight_slices import WeightSlice
from strategies.replica.whole_weights import joined

# True while an optimizer is built by another that wraps it.
_wrapped: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_strategies_wrapped", default=False)


def install() -> None:
    """Wraps ``apply`` and ``apply_gradients`` of optimizers, and the making of their variables."""
    # A user's optimizer may override `apply` and work on the gradients there: the trainer's calls go through
    # apply_gradients, which is hardly ever overridden, so it is wrapped as well.
    wrap(base_optimizer.BaseOptimizer, "apply_gradients", _apply_gradients)
    for owner in (base_optimizer.BaseOptimizer, *WRAPPING_OPTIMIZERS):
        wrap(owner, "apply", _apply)
    wrap(loss_scale_optimizer.LossScaleOptimizer, "_tf_apply", _tf_apply)
    for owner in WRAPPING_OPTIMIZERS:
        wrap(owner, "build", _build_wrapped)
    wrap(keras_tf_optimizer.TFOptimizer, "add_variable_from_reference", _add_variable)


def _is_reduced() -> bool:
    """Returns True where gradients are global already: one device is being updated, or the strategy is not ours."""
    return get_update_replica_id() is not None or engine_of(tf.distribute.get_strategy()) is None


def _reduce_first(
    optimizer: keras.Optimizer,
    gradients: Sequence[Any],
    variables: list[Any] | None,
    update: Callable[[Sequence[Any], Sequence[Any] | None], Any],
) -> Any:
    """Calls ``update`` with global gradients and their variables: once outside of our replicas, else per device."""
    engine = engine_of(tf.distribute.get_strategy())
    if engine is None or _is_reduced():
        return update(gradients, variables)
    # Read here, in the replica's own thread: `across` runs in another one.
    may_defer = train_steps.may_defer_update()
    targets = optimizer._trainable_variables if variables is None else variables
    gradients, are_global = applied_gradients.as_terms(gradients, targets)

    def across(strategy: tf.distribute.Strategy, gradients: list[Any]) -> Any:
        gradients = applied_gradients.marked(gradients, are_global)
        optimizer_variables.wrap_build(optimizer)
        if not optimizer.built and variables is not None:
            with tf.init_scope():
                optimizer.build(variables)
        if engine.sharded_updates is not None:
            return sharded_optimizers.apply(engine, optimizer, gradients, variables, update)
        known = optimizer._trainable_variables if variables is None else variables
        # Not for a tf.Variable: its `value` is a method.
        shards = [shard for v in known for shard in shards_of(v)]
        targets = [shard.value if isinstance(shard, keras.Variable) else shard for shard in shards]
        if engine.central is not None:
            result = engine.update_replicas(gradients, on_device, targets)
            # Variables that an optimizer makes before it is built have a component on each replica.
            engine.layout.mirror(optimizer.variables)
            return result
        accumulators = _accumulators(optimizer, variables)
        if accumulators is None:
            return engine.update_replicas(gradients, on_device, targets, may_defer=may_defer)
        is_due = tf.equal((optimizer._iterations + 1) % optimizer.gradient_accumulation_steps, 0)
        return engine.update_replicas(gradients, on_device, targets, Accumulation(accumulators, is_due))

    def on_device(summed: Sequence[Any]) -> Any:
        return update(summed, variables)

    context = tf.distribute.get_replica_context()
    if context is None:
        return across(tf.distribute.get_strategy(), list(gradients))
    if not applied_gradients.can_synchronize(context):
        return applied_gradients.apply_alone(engine, optimizer, gradients, variables, are_global, update)
    return context.merge_call(across, args=(list(gradients),))


def _accumulators(optimizer: keras.Optimizer, variables: list[Any] | None) -> list[Any] | None:
    """Returns the accumulator of each variable's gradient, if the optimizer accumulates gradients over steps."""
    if not optimizer.gradient_accumulation_steps:
        return None
    variables = optimizer._trainable_variables if variables is None else variables
    if needs_whole(optimizer):
        variables = joined(variables)
    found = [optimizer._accumulated_gradients[optimizer._get_variable_index(v)] for v in variables]
    return [shard.value for accumulator in found for shard in shards_of(accumulator)]


def _add_variable(
    original: Callable[..., Any], optimizer: keras.Optimizer, reference_variable: Any, *args: Any, **kwargs: Any
) -> Any:
    """Makes a slot. Accumulators, recognized only by Keras' name for them, hold each replica's part of a sum.

    Accumulators of a wrapped optimizer do not: a loss scale is checked at every step on the global gradient, so each
    replica accumulates the global gradient. Nor do those of gradients that overwrite their variable: each replica
    accumulates the maximum over all replicas.
    """
    if isinstance(reference_variable, WeightSlice):
        with named_as_shard(reference_variable):
            slot = sharded_optimizers.make_slot(optimizer, reference_variable, *args, **kwargs)
        weights.note_slot(optimizer, reference_variable, slot)
        return slot
    if isinstance(reference_variable, SplitWeight):
        slot = reference_variable.like()
        for shard in reference_variable.shards:
            slot.add(_add_variable(original, optimizer, shard, *args, **kwargs))
        return slot
    name = kwargs.get("name", args[0] if args else None)
    engine = engine_of(tf.distribute.get_strategy())
    is_sum = name == "gradient_accumulator" and not _wrapped.get() and not is_overwritten(reference_variable)
    gathers = is_sum and engine is not None and engine.central is None
    made = engine.accumulators.creating(optimizer) if engine is not None and gathers else contextlib.nullcontext()
    with made, named_as_shard(reference_variable):
        slot = original(optimizer, reference_variable, *args, **kwargs)
    weights.note_slot(optimizer, reference_variable, slot)
    return slot


def _build_wrapped(
    original: Callable[[keras.Optimizer, Sequence[Any]], None], optimizer: keras.Optimizer, variables: Sequence[Any]
) -> None:
    token = _wrapped.set(True)
    try:
        own = optimizer_variables.taken(optimizer, variables)
        with making_optimizer_state(), named_as_wholes(own):
            original(optimizer, own)
    finally:
        _wrapped.reset(token)


def _apply(
    original: Callable[..., Result],
    optimizer: keras.Optimizer,
    grads: Sequence[Any],
    trainable_variables: Iterable[Any] | None = None,
) -> Result:
    variables = None if trainable_variables is None else list(trainable_variables)

    def update(summed: Sequence[Any], targets: Sequence[Any] | None) -> Result:
        if isinstance(optimizer, WRAPPING_OPTIMIZERS):
            return original(optimizer, summed, targets)
        result: Result = apply_owned(
            optimizer, functools.partial(original, optimizer), *whole_pairs(optimizer, summed, targets)
        )
        return result

    return _reduce_first(optimizer, grads, variables, update)


def _apply_gradients(
    original: Callable[..., Result], optimizer: keras.Optimizer, grads_and_vars: Iterable[tuple[Any, Any]]
) -> Result:
    if _is_reduced():
        return original(optimizer, grads_and_vars)
    pairs = list(grads_and_vars)
    variables = [variable for _, variable in pairs]
    return _reduce_first(
        optimizer,
        [gradient for gradient, _ in pairs],
        variables,
        lambda summed, targets: original(optimizer, list(zip(summed, targets or variables, strict=True))),
    )


def _tf_apply(
    original: Callable[..., Result],
    optimizer: keras.Optimizer,
    grads: Sequence[Any],
    trainable_variables: Iterable[Any] | None = None,
) -> Result:
    if get_update_replica_id() is None:
        return original(optimizer, grads, trainable_variables)
    # Keras refuses to run outside a replica, because it could not reduce there. The gradients are reduced.
    return optimizer._common_apply(grads, trainable_variables=trainable_variables)
