"""Keras' global state that making layers changes: its random generator, and the counters behind automatic names."""

from __future__ import annotations

import collections
import contextlib
import random
from collections.abc import Iterator
from typing import Any

import numpy as np
from keras.src.backend.common import global_state
from keras.src.backend.common.stateless_scope import in_stateless_scope as in_scope

from strategies._keras_hooks.keras_versions import GLOBAL_SEED_GENERATOR

# Of `keras.src.utils.naming`, which has no constant for it.
_NAME_COUNTERS = "object_name_uids"


@contextlib.contextmanager
def _of_keras_kept() -> Iterator[None]:
    """Puts back at the end what was there at the beginning, in this thread."""
    generator: Any = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    seed = None if generator is None else generator.state.numpy()
    counters: Any = global_state.get_global_attribute(_NAME_COUNTERS)
    before = dict(counters or {})
    try:
        yield
    finally:
        # None has Keras make one when it needs it, with a seed of Python's generator.
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
        if generator is not None:
            generator.state.assign(seed)
        global_state.set_global_attribute(_NAME_COUNTERS, collections.defaultdict(int, before))


def in_stateless_scope() -> bool:
    """True inside of a ``keras.StatelessScope``, in which variables have other values."""
    return bool(in_scope())


@contextlib.contextmanager
def global_state_kept() -> Iterator[None]:
    """Inside, layers can be made without a trace in the global state of Python, NumPy and Keras.

    Afterwards their random generators are where they were, so that a model that is made next starts with the weights
    with which it would have started, and Keras goes on counting automatic names, which appear in logs and paths, where
    it was. What is made inside, and outlives it, has to be given names of its own.

    Example:

        with layer_api.global_state_kept():
            copy = keras.models.clone_model(model)
            copy.set_weights(model.get_weights())
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with _of_keras_kept():
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
