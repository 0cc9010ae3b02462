"""Layers that are adapted to data before training, where a replica spans processes and others own the layers' state.

Its contract is tested in ``tests/strategies/processes/spanning_pipe.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.wrapping import wrap
from strategies.replica.deferred import is_remote


def install() -> None:
    """Wraps the method that turns the variables of a `Normalization` into constants."""
    wrap(keras.layers.Normalization, "finalize_state", _finalize, in_step=False)


def _finalize(original: Callable[[Any], None], layer: Any) -> None:
    if not layer.built or layer.input_mean is not None or not is_remote(layer.adapt_mean):
        original(layer)
        return
    # Only the shapes matter: this process never computes the layer.
    layer.mean = tf.zeros(layer._broadcast_shape, layer.compute_dtype)
    layer.variance = tf.ones(layer._broadcast_shape, layer.compute_dtype)
