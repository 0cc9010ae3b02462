"""Random seeds: replicas draw differently, and the seeds they keep and save are one device's.

A layer's seed state is the same on all replicas, so Dropout would drop the same positions of every replica's rows.
The replica's index enters where a seed is used, not where it is kept.
"""

from __future__ import annotations

import random as python_random
from collections.abc import Callable
from typing import Any, Concatenate

import keras
import tensorflow as tf
from keras.src.backend.tensorflow import random as backend_random
from keras.src.random import seed_generator

from strategies._keras_hooks.wrapping import Rest, wrap
from strategies.batches import shares
from strategies.batches.row_dependence import mark
from strategies.batches.row_kinds import Kind
from strategies.replica import drawing
from strategies.replica.recomputed import check_seeded

# Far apart, so that neighbouring replicas do not draw what neighbouring seeds draw: 2**32 / golden ratio.
_STRIDE = 0x9E3779B9

_Draw = Callable[..., tf.Tensor]


def install() -> None:
    """Wraps the drawing of a seed, the generator that serves draws without one, and the draws of initial values."""
    wrap(seed_generator.SeedGenerator, "next", _next)
    wrap(seed_generator, "global_seed_generator", _global_seed_generator)
    wrap(backend_random, "normal", _normal)
    wrap(backend_random, "truncated_normal", _truncated_normal)
    wrap(backend_random, "uniform", _uniform)


def _next(
    original: Callable[Concatenate[keras.random.SeedGenerator, Rest], tf.Tensor],
    generator: keras.random.SeedGenerator,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> tf.Tensor:
    seed = original(generator, *args, **kwargs)
    share = shares.current()
    if share is None:
        return mark(tf.identity(seed), Kind.DRAWN) if shares.known_dependence() is not None else seed
    if share.num_replicas == 1:
        return seed
    if share.replica_id == 0:
        return mark(tf.identity(seed), Kind.DRAWN)
    offset = tf.constant([share.replica_id * _STRIDE % 2**31, 0], tf.int64)
    return mark(seed + tf.cast(offset, seed.dtype), Kind.DRAWN)


def _global_seed_generator(original: Callable[[], keras.random.SeedGenerator]) -> keras.random.SeedGenerator:
    check_seeded()
    share = shares.current()
    if share is None:
        return original()
    # Keras keeps one per thread, so that every replica would make its own at every trace.
    return tf.distribute.get_replica_context().merge_call(_mirrored_seed_generator)


def _mirrored_seed_generator(strategy: tf.distribute.Strategy) -> keras.random.SeedGenerator:
    extended: Any = strategy.extended
    if extended.seed_generator is None:
        # Made only where a draw is traced, which need not be on all processes: what they draw next stays the same.
        state = python_random.getstate()
        with tf.init_scope():
            extended.seed_generator = seed_generator.SeedGenerator()
        if extended.parts.spans_processes:
            python_random.setstate(state)
    return extended.seed_generator


def _normal(
    original: _Draw, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> tf.Tensor:
    return _drawn("normal", original, shape, (mean, stddev), dtype, seed)


def _truncated_normal(
    original: _Draw, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> tf.Tensor:
    return _drawn("truncated_normal", original, shape, (mean, stddev), dtype, seed)


def _uniform(
    original: _Draw, shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None
) -> tf.Tensor:
    return _drawn("uniform", original, shape, (minval, maxval), dtype, seed)


def _drawn(kind: str, original: _Draw, shape: Any, numbers: tuple[Any, Any], dtype: Any, seed: Any) -> tf.Tensor:
    kept = tf.as_dtype(dtype or keras.config.floatx())
    if not drawing.is_in_place(shape, kept):
        return original(shape, *numbers, dtype, seed)
    cast = backend_random._cast_seed(seed_generator.draw_seed(seed))
    return drawing.draw(kind, shape, numbers, kept, cast)
