"""The variables that an optimizer is built with: the model's, whole weights, or slices of them.

Optimizers that look at more than one number at a time get whole weights in place of shards (``whole_updates``). Where
updates are sharded over the data axis, optimizers get slices (``sharded_optimizers``). Where variables are on a
parameter device, so are those that optimizers make while they are built.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf
from keras.src.optimizers import base_optimizer

from strategies._keras_hooks import sharded_optimizers
from strategies._keras_hooks.keras_versions import WRAPPING_OPTIMIZERS
from strategies._keras_hooks.whole_updates import needs_whole
from strategies._keras_hooks.wrapping import wrap
from strategies.engine.central import making_optimizer_state
from strategies.engine.engine import engine_of
from strategies.replica.weight_identity import named_as_wholes
from strategies.replica.whole_weights import joined


def install() -> None:
    """Wraps ``finalize_variable_values``, called at the end of training; :func:`wrap_build` wraps ``build``."""
    for owner in (base_optimizer.BaseOptimizer, *WRAPPING_OPTIMIZERS):
        if "finalize_variable_values" in vars(owner):
            wrap(owner, "finalize_variable_values", _finalize, in_step=False)


def wrap_build(optimizer: keras.Optimizer) -> None:
    """Wraps ``build`` of the class of an optimizer, or inner one, that gets other variables than the model's."""
    for inner in sharded_optimizers.inner_optimizers(optimizer):
        wrap_build(inner)
    # `optimizers.install` wraps the `build` of these.
    if isinstance(optimizer, WRAPPING_OPTIMIZERS):
        return
    engine = engine_of(tf.distribute.get_strategy())
    is_central = engine is not None and engine.central is not None
    # Keras' own optimizers do not look at the names of variables.
    looks_at_names = not type(optimizer).build.__module__.startswith("keras.")
    if looks_at_names or needs_whole(optimizer) or is_central or sharded_optimizers.sharded_updates() is not None:
        for cls in type(optimizer).__mro__:
            if "build" in vars(cls) and issubclass(cls, base_optimizer.BaseOptimizer):
                wrap(cls, "build", _build, in_step=False)


def _build(original: Callable[..., None], optimizer: keras.Optimizer, variables: Sequence[Any]) -> None:
    own = taken(optimizer, variables)
    with making_optimizer_state(), named_as_wholes(own):
        original(optimizer, own)


def taken(optimizer: keras.Optimizer, variables: Sequence[Any]) -> Sequence[Any]:
    """Returns the variables that an optimizer is built with in place of the model's."""
    slices = sharded_optimizers.sliced(optimizer, variables)
    if slices is not None:
        return slices
    return joined(variables) if needs_whole(optimizer) else variables


def _finalize(original: Callable[..., None], optimizer: keras.Optimizer, variables: Sequence[Any]) -> None:
    if sharded_optimizers.partition_of(optimizer) is None:
        original(optimizer, joined(variables) if needs_whole(optimizer) else variables)
    elif isinstance(optimizer, WRAPPING_OPTIMIZERS):
        # Each optimizer that it wraps finalizes its own slices.
        original(optimizer, optimizer._trainable_variables)
    else:
        sharded_optimizers.finalize(original, optimizer)
