"""Gives all processes one TensorFlow seed, since they split what they shuffle, and one state of Python's generators."""

from __future__ import annotations

import random
import secrets
import weakref
import zlib
from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tf_internals import eager_context, random_seed
from strategies.collectives.process_group import ProcessGroup

# Kinds of global seeds in the messages of `agree_on_seed`.
_NONE, _SET, _DRAWN = 0, 1, 2


class UnsetSeed(int):
    """TensorFlow's global seed where the program has set none.

    Ops without a seed of their own derive theirs from `drawn`. As a number it is the global seed that TensorFlow
    assumes beside an op's own seed where none is set: ``shuffle(seed=7)`` has the order that it has without us.
    """

    drawn: int

    def __new__(cls, drawn: int) -> UnsetSeed:
        """Returns TensorFlow's default global seed, with the number that ops without a seed use."""
        seed = super().__new__(cls, random_seed.DEFAULT_GRAPH_SEED)
        seed.drawn = drawn
        return seed


class _FirstSeeds(weakref.WeakKeyDictionary[Any, int]):
    """The number of ops without a seed in each graph, from which TensorFlow makes their seeds; starts at `drawn`."""

    def setdefault(self, key: Any, default: int | None = None) -> int:
        if isinstance(key.seed, UnsetSeed):
            default = key.seed.drawn
        return super().setdefault(key, default or 0)


def agree_on_seed(process_group: ProcessGroup) -> None:
    """Sets the same global TensorFlow seed on all processes; shuffles without a seed derive theirs from it.

    If the program has set the same seed everywhere, it stays; otherwise it is rank 0's seed. Where rank 0 has none,
    it draws an `UnsetSeed`.
    """
    mine = _kind_and_number(eager_context.global_seed())
    seeds = process_group.gather(tf.constant([mine], tf.int64)).numpy().tolist()
    if seeds[0][0] != _NONE and all(seed == seeds[0] for seed in seeds):
        return
    theirs = (_DRAWN, secrets.randbelow(2**31)) if mine[0] == _NONE else mine
    kind, number = process_group.broadcast(tf.constant(theirs, tf.int64)).numpy().tolist()
    if kind == _SET:
        tf.random.set_seed(number)
    else:
        set_unset_seed(number)


def _kind_and_number(seed: int | None) -> tuple[int, int]:
    if seed is None:
        return _NONE, 0
    return (_DRAWN, seed.drawn) if isinstance(seed, UnsetSeed) else (_SET, int(seed))


def set_unset_seed(drawn: int) -> None:
    """Makes ops without a seed derive theirs from `drawn`, and leaves ops with a seed as they are."""
    tf.random.set_seed(UnsetSeed(drawn))
    eager_context.context()._rng = random.Random(drawn)
    if not isinstance(random_seed._graph_to_seed_dict, _FirstSeeds):
        random_seed._graph_to_seed_dict = _FirstSeeds(random_seed._graph_to_seed_dict)


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
