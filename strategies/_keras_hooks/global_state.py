"""Keras' global state that making layers changes: its random generator, and the counters behind automatic names."""

from __future__ import annotations

import collections
import contextlib
from collections.abc import Iterator
from typing import Any

from keras.src.backend.common import global_state
from keras.src.random import seed_generator

# Of `keras.src.utils.naming`, which has no constant for it.
_NAME_COUNTERS = "object_name_uids"


@contextlib.contextmanager
def kept() -> Iterator[None]:
    """Puts back at the end what was there at the beginning, in this thread."""
    generator: Any = global_state.get_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR)
    seed = None if generator is None else generator.state.numpy()
    counters: Any = global_state.get_global_attribute(_NAME_COUNTERS)
    before = dict(counters or {})
    try:
        yield
    finally:
        # None has Keras make one when it needs it, with a seed of Python's generator.
        global_state.set_global_attribute(seed_generator.GLOBAL_SEED_GENERATOR, generator)
        if generator is not None:
            generator.state.assign(seed)
        global_state.set_global_attribute(_NAME_COUNTERS, collections.defaultdict(int, before))
