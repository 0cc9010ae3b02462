"""Random seeds: one for all processes, which share out what they draw, and none used up where a model is copied."""

from __future__ import annotations

import contextlib
import random
import secrets
from collections.abc import Iterator

import numpy as np
import tensorflow as tf

from strategies._keras_hooks import global_state
from strategies._tf_internals import eager_context
from strategies.crossing import Crossing


def agree_on_seed(crossing: Crossing) -> None:
    """Gives TensorFlow the same global seed on all processes, from which shuffles without a seed take theirs.

    Where the program has set the same one everywhere, it stays; otherwise rank 0's holds, or one that it draws.
    """
    own = eager_context.global_seed()
    mine = tf.constant([[0 if own is None else 1, own or 0]], tf.int64)
    seeds = crossing.gather(mine).numpy().tolist()
    if seeds[0][0] and all(seed == seeds[0] for seed in seeds):
        return
    drawn = tf.constant(secrets.randbelow(2**31) if own is None else own, tf.int64)
    tf.random.set_seed(int(crossing.broadcast(drawn)))


@contextlib.contextmanager
def global_state_kept() -> Iterator[None]:
    """Inside, layers can be made without a trace in the global state of Python, NumPy and Keras.

    Afterwards their random generators are where they were, so that a model that is made next starts with the weights
    with which it would have started, and Keras goes on counting automatic names, which appear in logs and paths, where
    it was. What is made inside, and outlives it, has to be given names of its own.

    Example:

        with strategies.global_state_kept():
            copy = keras.models.clone_model(model)
            copy.set_weights(model.get_weights())
    """
    of_python, of_numpy = random.getstate(), np.random.get_state()
    try:
        with global_state.kept():
            yield
    finally:
        random.setstate(of_python)
        np.random.set_state(of_numpy)
