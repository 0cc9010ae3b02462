"""Passes on the shape and dtype of new Keras variables, which the initial value, a callable, does not reveal."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import core

from strategies._keras_hooks.settled_initializers import settled
from strategies._keras_hooks.wrapping import wrap
from strategies.engine.engine import engine_of
from strategies.engine.placed_variables import asking_for
from strategies.replica.overwritten import note_owner


def install() -> None:
    """Wraps the initialization of variables."""
    wrap(core.Variable, "_initialize_with_initializer", _initialize, in_step=False)


def _initialize(original: Callable[..., None], variable: Any, initializer: Callable[..., Any]) -> None:
    with asking_for(variable._shape, variable._dtype):
        original(variable, settled(initializer, variable._shape, variable._dtype))
    if engine_of(tf.distribute.get_strategy()) is not None:
        note_owner(variable._value, variable)
