"""The global state of Keras that changes when layers are made: its random generator and the name counters."""

from __future__ import annotations

import collections
import contextlib
import random
from collections.abc import Iterator, Mapping
from typing import Any

import numpy as np

from strategies._keras_hooks import addresses
from strategies._keras_hooks.addresses import global_state
from strategies._keras_hooks.keras_versions import GLOBAL_SEED_GENERATOR

# The key that `keras.src.utils.naming` uses, which has no constant for it.
_NAME_COUNTERS = "object_name_uids"


@contextlib.contextmanager
def _keras_state_kept() -> Iterator[None]:
    """Context manager: restores Keras' random generator and name counters of this thread."""
    generator: Any = global_state.get_global_attribute(GLOBAL_SEED_GENERATOR)
    seed = None if generator is None else generator.state.numpy()
    before = name_counters()
    try:
        yield
    finally:
        # With None, Keras makes a generator when it needs one, with a seed from Python's generator.
        global_state.set_global_attribute(GLOBAL_SEED_GENERATOR, generator)
        if generator is not None:
            generator.state.assign(seed)
        restore_name_counters(before)


def name_counters() -> Mapping[str, int]:
    """Returns a copy of Keras' counters of automatic names, of this thread."""
    counters: Any = global_state.get_global_attribute(_NAME_COUNTERS)
    return dict(counters or {})


def restore_name_counters(before: Mapping[str, int]) -> None:
    """Sets Keras' counters of automatic names, as if nothing had been named since `name_counters` returned them."""
    global_state.set_global_attribute(_NAME_COUNTERS, collections.defaultdict(int, before))


def in_stateless_scope() -> bool:
    """Returns True inside of a ``keras.StatelessScope``, in which variables have other values."""
    return bool(addresses.in_stateless_scope())


@contextlib.contextmanager
def global_state_kept() -> Iterator[None]:
    """Context manager: layers made in the block leave the global state of Python, NumPy and Keras unchanged.

    At the end their random generators are restored, so that a model made later starts with the same weights as without
    the block, and so are Keras' counters of automatic names, which appear in logs and paths. Layers that are made in
    the block and outlive it need explicit names.

    Example:

        with layer_api.global_state_kept():
            copy = keras.models.clone_model(model)
            copy.set_weights(model.get_weights())
    """
    python_state, numpy_state = random.getstate(), np.random.get_state()
    try:
        with _keras_state_kept():
            yield
    finally:
        random.setstate(python_state)
        np.random.set_state(numpy_state)
