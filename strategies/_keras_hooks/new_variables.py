"""Creation of Keras variables: shape and dtype are passed on, and the next state of an initializer is taken.

The initial value of a variable, a callable, does not tell its shape and dtype.

Where a replica spans processes, weights are drawn when they are needed, and each process draws its own. An initializer
with a state, such as a seed generator or a generator of numpy, would then give other numbers than it gives plain Keras,
and different ones on each process. So every process takes the initializer's next state, or the numbers that it draws,
in the order in which variables are made.

Its contract is tested in ``tests/strategies/processes/spanning_refusals.py``.
"""

from __future__ import annotations

import copy
import functools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.addresses import tf_core
from strategies._keras_hooks.wrapping import spanning_parts, wrap
from strategies.engine.engine import engine_of
from strategies.replica.creation_context import creating
from strategies.replica.deferred import is_remote
from strategies.replica.overwritten import note_owner

#: Modules whose functions draw any part of a weight on request, and have called `settled` on the user's initializer.
_OURS = ("strategies.", "keras_ext.")


def install() -> None:
    """Wraps the initialization of variables."""
    wrap(tf_core.Variable, "_initialize_with_initializer", _initialize, in_step=False)


def _initialize(original: Callable[..., None], variable: Any, initializer: Callable[..., Any]) -> None:
    with creating(form=(tuple(variable._shape), variable._dtype)):
        original(variable, settled(initializer, variable._shape, variable._dtype))
    if engine_of(tf.distribute.get_strategy()) is not None:
        note_owner(variable._value, variable)


class _Taken(keras.random.SeedGenerator):
    """A seed generator that always returns one state, taken from another seed generator.

    Args:
        state: an eager tensor.
    """

    def __init__(self, state: tf.Tensor) -> None:
        self._state = state

    def next(self, ordered: bool = True) -> tf.Tensor:
        """Returns the same state at every call."""
        return self._state


def settled(initializer: Callable[..., Any], shape: Sequence[int], dtype: Any) -> Callable[..., Any]:
    """Returns an initializer that gives the same numbers whenever, and however often, it is called.

    Returns the initializer unchanged unless a replica spans processes and it has a state. From a Keras initializer with
    a seed generator, the next seed is taken; others that may have a state, such as a user's function, are called now:
    every process holds the result until its variable has it.

    Args:
        initializer: a Keras initializer, or a function that takes a shape and ``dtype=``.
        shape: the shape of the variable.
        dtype: the dtype of the variable.
    """
    if spanning_parts() is None or _module(initializer).startswith(_OURS):
        return initializer
    state = getattr(initializer, "__dict__", {}).values()
    generators = [each for each in state if isinstance(each, keras.random.SeedGenerator)]
    if any(is_remote(each.state) for each in generators):
        # The initializer belongs to a cloned layer at coordinates that this process does not own.
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
