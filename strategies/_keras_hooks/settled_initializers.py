"""Initializers whose results depend on how often they were called: settled when the variable is made.

Where a replica spans processes, weights are drawn when they are needed, and each process draws its own. An initializer
with a state, such as a seed generator or a generator of numpy, would give them other numbers then than it gives plain
Keras, and each process others. So every process takes its next state, or what it draws, in the order in which variables
are made.

Its contract is tested in ``tests/strategies/processes/spanning_refusals.py``.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.wrapping import spanning_parts
from strategies.replica.deferred import is_remote

#: Of functions that draw what they are asked for, and leave the state to `settled`.
_OURS = ("strategies.", "keras_ext.")


class _Taken(keras.random.SeedGenerator):
    """A seed generator with one state, which was taken from another one.

    Args:
        state: an eager tensor.
    """

    def __init__(self, state: tf.Tensor) -> None:
        self._state = state

    def next(self, ordered: bool = True) -> tf.Tensor:
        """Returns it, however often."""
        return self._state


def settled(initializer: Callable[..., Any], shape: Sequence[int], dtype: Any) -> Callable[..., Any]:
    """Returns an initializer that gives the same numbers whenever, and however often, it is called.

    Itself, unless a replica spans processes and it has a state. Of Keras' own with a seed generator, it takes the next
    seed; others that may have a state, such as a user's function, are called now: every process holds what they draw
    until its variable has it.

    Args:
        initializer: an initializer of Keras, or a function that takes a shape and ``dtype=``.
        shape: of the variable.
        dtype: of the variable.
    """
    if spanning_parts() is None or _module(initializer).startswith(_OURS):
        return initializer
    state = getattr(initializer, "__dict__", {}).values()
    generators = [each for each in state if isinstance(each, keras.random.SeedGenerator)]
    if any(is_remote(each.state) for each in generators):
        # Of a copy's layer, at a place where this process holds nothing.
        return initializer
    if isinstance(initializer, keras.Initializer) and _module(initializer).startswith("keras."):
        if not generators:
            return initializer
        taken: Any = copy.copy(initializer)
        with tf.init_scope():
            taken.seed = _Taken(tf.convert_to_tensor(taken.seed.next()))
        return taken
    with tf.init_scope(), tf.device("CPU:0"):
        value = tf.convert_to_tensor(initializer(shape, dtype=dtype), dtype=dtype)
    return lambda *_, **__: value


def _module(initializer: Any) -> str:
    while isinstance(initializer, functools.partial):
        initializer = initializer.func
    return str(getattr(initializer, "__module__", ""))
