"""Attributes that are set on layers while a replica runs: the losses that they add, and tensors.

Keras stores both on the layer, which all replicas of a process share. See ``strategies.replica.attributes``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Concatenate

import keras

from strategies._keras_hooks.wrapping import Rest, Result, wrap
from strategies.batches.rows import is_tensor
from strategies.replica import attributes as replica_attributes

# Keras changes these in place.
_COLLECTIONS = ("_losses", "_loss_ids")


def install() -> None:
    """Wraps the methods that collect losses, and the setting of attributes."""
    wrap(keras.Layer, "add_loss", _with_own_losses)
    wrap(keras.Layer, "_clear_losses", _with_own_losses)
    wrap(keras.Layer, "__setattr__", _set_attribute, in_step=False)


def _with_own_losses(
    original: Callable[Concatenate[keras.Layer, Rest], Result],
    layer: keras.Layer,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> Result:
    attributes = replica_attributes.current()
    if attributes is not None:
        for name in _COLLECTIONS:
            if attributes.claim(layer, name):
                vars(layer)[name] = type(vars(layer)[name])(vars(layer)[name])
    return original(layer, *args, **kwargs)


def _set_attribute(original: Callable[..., None], layer: keras.Layer, name: str, value: object) -> None:
    attributes = replica_attributes.current()
    # Attributes that are set while a layer is built are set once, for all replicas.
    if attributes is not None and getattr(layer, "built", False):
        before = vars(layer).get(name)
        if _holds_tensor(value) or _holds_tensor(before):
            attributes.claim(layer, name)
    original(layer, name, value)


def _holds_tensor(value: object) -> bool:
    if isinstance(value, dict):
        return any(_holds_tensor(item) for item in value.values())
    if isinstance(value, (list, tuple, set)):
        return any(_holds_tensor(item) for item in value)
    # Tensors in pieces on several devices of a replica count, too. Variables do not: all replicas share them.
    return is_tensor(value) or (hasattr(value, "__tf_tensor__") and not hasattr(value, "assign"))
