"""Gives all processes one TensorFlow seed, since they split what they shuffle, and one state of Python's generators."""

from __future__ import annotations

import random
import secrets
import zlib

import numpy as np
import tensorflow as tf

from strategies._tf_internals import eager_context
from strategies.collectives.process_group import ProcessGroup


def agree_on_seed(process_group: ProcessGroup) -> None:
    """Sets the same global TensorFlow seed on all processes; shuffles without a seed derive theirs from it.

    If the program has set the same seed everywhere, it stays; otherwise it is rank 0's seed, or one that rank 0 draws.
    """
    own = eager_context.global_seed()
    mine = tf.constant([[0 if own is None else 1, own or 0]], tf.int64)
    seeds = process_group.gather(mine).numpy().tolist()
    if seeds[0][0] and all(seed == seeds[0] for seed in seeds):
        return
    drawn = tf.constant(secrets.randbelow(2**31) if own is None else own, tf.int64)
    tf.random.set_seed(int(process_group.broadcast(drawn)))


def agree_on_random_state(process_group: ProcessGroup) -> None:
    """Sets Python's and numpy's global generators to the same state on all processes: rank 0's, if they differ.

    Keras' initializers and seed generators take their seeds from Python's generator. From then on, processes that hold
    different variables of one replica draw the same initial weights, without sending any.
    """
    integers, floats = _state()
    mine = tf.constant([zlib.crc32(integers.tobytes()), zlib.crc32(floats.tobytes())], tf.int64)
    digests = process_group.gather(mine[tf.newaxis]).numpy().tolist()
    if any(digest != digests[0] for digest in digests):
        _set_state(
            process_group.broadcast(tf.constant(integers)).numpy(), process_group.broadcast(tf.constant(floats)).numpy()
        )


def _state() -> tuple[np.ndarray, np.ndarray]:
    """Returns the states of Python's and numpy's generators as arrays (integers, floats) of fixed shapes."""
    _, words, normal = random.getstate()
    _, keys, position, has_normal, next_normal = np.random.get_state()
    integers = [*words, int(normal is not None), *(int(key) for key in keys), int(position), int(has_normal)]
    return np.array(integers, np.int64), np.array([normal or 0.0, next_normal], np.float64)


def _set_state(integers: np.ndarray, floats: np.ndarray) -> None:
    version, words, _ = random.getstate()
    own, (has_normal, *rest) = integers[: len(words)], integers[len(words) :]
    random.setstate((version, tuple(map(int, own)), float(floats[0]) if has_normal else None))
    keys = np.array(rest[:-2], np.uint32)
    np.random.set_state(("MT19937", keys, int(rest[-2]), int(rest[-1]), float(floats[1])))
