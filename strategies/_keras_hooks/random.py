"""Random seeds: replicas draw different numbers, but stored and saved seed states are those of one device.

A layer's seed state is the same on all replicas, so Dropout would drop the same positions of every replica's rows.
The replica's index enters where a seed is used, not where it is stored.

In a step of Keras' trainer this applies to numbers for rows. Numbers in a shape without rows, such as noise on a
weight, are those of one device on all replicas. So are numbers for rows that are drawn with an int seed: each replica
draws for all rows of the batch and takes its own rows' numbers.
"""

from __future__ import annotations

import random as python_random
from collections.abc import Callable, Sequence
from typing import Any, Concatenate

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks.addresses import seed_generator, tf_random
from strategies._keras_hooks.wrapping import Rest, wrap
from strategies.batches import shares
from strategies.batches.row_counts import RowCount
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.batches.row_warnings import warn
from strategies.engine.engine import Engine, engine_of
from strategies.replica import drawing
from strategies.replica.recomputed import check_seeded

# Far apart, so that neighbouring replicas do not draw what neighbouring seeds draw: 2**32 / golden ratio.
_STRIDE = 0x9E3779B9

_Draw = Callable[..., tf.Tensor]


def install() -> None:
    """Wraps the drawing of a seed, the generator for draws without one, and Keras' backend functions that draw."""
    wrap(seed_generator.SeedGenerator, "next", _next)
    wrap(seed_generator, "global_seed_generator", _global_seed_generator)
    wrap(tf_random, "normal", _normal)
    wrap(tf_random, "truncated_normal", _truncated_normal)
    wrap(tf_random, "uniform", _uniform)
    wrap(tf_random, "randint", _randint)
    wrap(tf_random, "categorical", _categorical)
    wrap(tf_random, "dropout", _dropout)


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
    if share.num_replicas == 1 or share.draws_alike:
        # Each micro-batch draws for itself, also of one replica.
        return mark(tf.identity(seed), Kind.DRAWN) if shares.num_microbatches() > 1 and not share.draws_alike else seed
    if share.replica_id == 0 and share.constant_of_replica is None:
        return mark(tf.identity(seed), Kind.DRAWN)
    offset = share.value_on_replica(lambda replica: np.array([replica * _STRIDE % 2**31, 0], np.int64))
    return mark(seed + tf.cast(offset, seed.dtype), Kind.DRAWN)


def _global_seed_generator(original: Callable[[], keras.random.SeedGenerator]) -> keras.random.SeedGenerator:
    check_seeded()
    share, engine = shares.current(), engine_of(tf.distribute.get_strategy())
    if share is None or engine is None:
        return original()
    # Keras keeps one generator per thread, so that every replica would make its own at every trace.
    return tf.distribute.get_replica_context().merge_call(lambda _: _mirrored_seed_generator(engine))


def _mirrored_seed_generator(engine: Engine) -> keras.random.SeedGenerator:
    if engine.seed_generator is None:
        # Some processes may not trace a draw: Python's state is restored, so that all draw the same numbers next.
        state = python_random.getstate()
        with tf.init_scope():
            engine.seed_generator = seed_generator.SeedGenerator()
        if engine.parts.spans_processes:
            python_random.setstate(state)
    return engine.seed_generator


def _normal(
    original: _Draw, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> tf.Tensor:
    return _placed(shape, seed, lambda shape: _drawn("normal", original, shape, (mean, stddev), dtype, seed))


def _truncated_normal(
    original: _Draw, shape: Any, mean: Any = 0.0, stddev: Any = 1.0, dtype: Any = None, seed: Any = None
) -> tf.Tensor:
    return _placed(shape, seed, lambda shape: _drawn("truncated_normal", original, shape, (mean, stddev), dtype, seed))


def _uniform(
    original: _Draw, shape: Any, minval: Any = 0.0, maxval: Any = 1.0, dtype: Any = None, seed: Any = None
) -> tf.Tensor:
    return _placed(shape, seed, lambda shape: _drawn("uniform", original, shape, (minval, maxval), dtype, seed))


def _randint(
    original: _Draw, shape: Any, minval: Any, maxval: Any, dtype: Any = "int32", seed: Any = None
) -> tf.Tensor:
    return _placed(shape, seed, lambda shape: original(shape, minval, maxval, dtype, seed))


def _categorical(
    original: _Draw, logits: tf.Tensor, num_samples: Any, dtype: Any = "int64", seed: Any = None
) -> tf.Tensor:
    share = _trainer_share()
    if share is None or not isinstance(seed, int):
        return original(logits, num_samples, dtype, seed)
    rows = tf.shape(logits)[0] if logits.shape[0] is None else RowCount.from_first_dim(logits)

    def draw(shape: Any) -> tf.Tensor:
        if shape[0] is rows:
            return original(logits, num_samples, dtype, seed)
        # The draw of a row depends on its position and its logits only.
        first = _first_row(share)
        return original(tf.pad(logits, [[first, shape[0] - first - rows], [0, 0]]), num_samples, dtype, seed)

    return _placed([rows, num_samples], seed, draw)


def _dropout(original: _Draw, inputs: tf.Tensor, rate: float, noise_shape: Any = None, seed: Any = None) -> tf.Tensor:
    share = _trainer_share()
    if share is None:
        return original(inputs, rate, noise_shape, seed)
    for_rows = shares.current_dependence().kind(inputs) is not Kind.SAME and not (noise_shape and noise_shape[0] == 1)
    if not for_rows:
        return _alike_drawn(lambda: original(inputs, rate, noise_shape, seed))
    if not isinstance(seed, int):
        return original(inputs, rate, noise_shape, seed)
    dynamic = tf.shape(inputs)
    own = [dynamic[i] if size is None else size for i, size in enumerate(inputs.shape)]
    if inputs.shape[0] is not None:
        own[0] = RowCount.from_first_dim(inputs)
    noise = None if noise_shape is None else [None, *noise_shape[1:]]
    return inputs * _placed(own, seed, lambda shape: original(tf.ones(shape, inputs.dtype), rate, noise, seed))


def _placed(shape: Any, seed: Any, draw: Callable[[Any], tf.Tensor]) -> tf.Tensor:
    """Draws numbers in a shape: for the rows of the replica if the shape has rows, else the same on all replicas."""
    share = _trainer_share()
    if share is None:
        return draw(shape)
    if not _has_rows(shape, share):
        return _alike_drawn(lambda: draw(shape))
    if not isinstance(seed, int):
        return draw(shape)
    if _may_be_another(shape):
        warn(
            f"Numbers are drawn with an int for a seed in a shape that begins with {shape[0]}, which is also the "
            "number of rows of a replica: if they are for rows, each replica's get the same ones, unlike one device",
            "For rows, take the shape from keras.ops.shape(x), or use a keras.random.SeedGenerator.",
        )
        return _alike_drawn(lambda: draw(shape))
    if not _draws_for_all(shape, seed):
        warn(
            "Rows are drawn with an int for a seed where the numbers of rows of other replicas are not known, "
            "so that each replica gets the same numbers, unlike one device",
            "Use a keras.random.SeedGenerator, which draws other numbers on each replica, or draw in the data.",
        )
        return draw(shape)
    whole = draw([share.num_all, *shape[1:]])
    # A dummy row gets the numbers of the batch's last row.
    first = _first_row(share)
    rows = whole[first : first + shape[0]]
    if isinstance(shape[0], int):
        rows = tf.ensure_shape(rows, [shape[0], *rows.shape[1:]])
    return mark(rows, Kind.ROWS)


def _trainer_share() -> shares.Share | None:
    share = shares.current()
    return None if share is None or not share.in_trainer or share.num_replicas == 1 else share


def _has_rows(shape: Any, share: shares.Share) -> bool:
    """Returns True if a shape contains the replica's number of rows."""
    if isinstance(shape, tf.Tensor):
        return share.dependence.kind(shape) is not Kind.SAME
    sizes: Sequence[Any] = list(shape) if isinstance(shape, Sequence | tf.TensorShape) else [shape]
    dependence = shares.current_dependence()
    if any(isinstance(size, tf.Tensor) and dependence.kind(size) is not Kind.SAME for size in sizes):
        return True
    if sizes and isinstance(sizes[0], RowCount):
        return sizes[0].is_of_rows
    return bool(sizes) and isinstance(sizes[0], int) and sizes[0] in dependence.sizes.of_replica


def _may_be_another(shape: Any) -> bool:
    """Returns True if the first size of a shape is a plain int, which equals the number of rows perhaps by chance."""
    return not isinstance(shape, tf.Tensor) and isinstance(shape[0], int) and not isinstance(shape[0], RowCount)


def _draws_for_all(shape: Any, seed: int) -> bool:
    """Returns True if the replica can draw for the rows of all replicas: it knows their number and its first row."""
    share = _trainer_share()
    if share is None or share.num_all is None or share.in_inner_function or shares.is_in_microbatches():
        return False
    if isinstance(shape, tf.Tensor) or not _has_rows(shape[:1], share):
        return False
    if isinstance(shape[0], tf.Tensor) and not share.dependence.is_number_of_rows(shape[0]):
        return False
    return share.find_first_row() is not None


def _first_row(share: shares.Share) -> int | tf.Tensor:
    first, number = share.find_first_row(), share.num_all
    if isinstance(first, int) and isinstance(number, int):
        return min(first, max(number - 1, 0))
    last: tf.Tensor = tf.minimum(first, tf.maximum(tf.convert_to_tensor(number) - 1, 0))
    return last


def _alike_drawn(draw: Callable[[], tf.Tensor]) -> tf.Tensor:
    with shares.changed(draws_alike=_trainer_share() is not None):
        return draw()


def _drawn(kind: str, original: _Draw, shape: Any, numbers: tuple[Any, Any], dtype: Any, seed: Any) -> tf.Tensor:
    kept = tf.as_dtype(dtype or keras.config.floatx())
    if not drawing.is_in_place(shape, kept):
        return original(shape, *numbers, dtype, seed)
    cast = tf_random._cast_seed(seed_generator.draw_seed(seed))
    return drawing.draw(kind, shape, numbers, kept, cast)
