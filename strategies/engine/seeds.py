"""One random seed for all processes, which share out what they draw."""

from __future__ import annotations

import secrets

import tensorflow as tf

from strategies._tf_internals import eager_context
from strategies.collectives.process_group import ProcessGroup


def agree_on_seed(process_group: ProcessGroup) -> None:
    """Gives TensorFlow the same global seed on all processes, from which shuffles without a seed take theirs.

    Where the program has set the same one everywhere, it stays; otherwise rank 0's holds, or one that it draws.
    """
    own = eager_context.global_seed()
    mine = tf.constant([[0 if own is None else 1, own or 0]], tf.int64)
    seeds = process_group.gather(mine).numpy().tolist()
    if seeds[0][0] and all(seed == seeds[0] for seed in seeds):
        return
    drawn = tf.constant(secrets.randbelow(2**31) if own is None else own, tf.int64)
    tf.random.set_seed(int(process_group.broadcast(drawn)))
