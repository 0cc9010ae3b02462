"""Draws random initial values in the weight's own memory, without the copies that eager arithmetic makes.

``mean + stddev * draw``, run eagerly, holds three arrays of the weight's size at once. In a traced function each
operation reuses the memory of its input. The numbers are the same, since the same kernels draw and compute them.
"""

from __future__ import annotations

import functools
import math
from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.creation_context import creation_context

#: Below this size the copies do not matter, and tracing would take longer than drawing.
_LEAST_BYTES = 2**20

#: Each takes a shape, a seed, and two numbers: mean and standard deviation, or minimum and maximum.
_DRAWS: Mapping[str, Callable[..., tf.Tensor]] = {
    "normal": tf.random.stateless_normal,
    "truncated_normal": tf.random.stateless_truncated_normal,
    "uniform": tf.random.stateless_uniform,
}


def is_in_place(shape: Sequence[Any], dtype: tf.DType) -> bool:
    """Returns True if a value of this shape is to be drawn by :func:`draw`."""
    return (
        creation_context().draws_in_place
        and tf.executing_eagerly()
        and all(isinstance(size, int) for size in shape)
        and math.prod(shape) * dtype.size >= _LEAST_BYTES
    )


def draw(kind: str, shape: Sequence[int], numbers: tuple[Any, Any], dtype: tf.DType, seed: tf.Tensor) -> tf.Tensor:
    """Returns the value of ``tf.random.stateless_...`` for `kind`, computed in a traced function.

    Args:
        kind: "normal", "truncated_normal" or "uniform".
        shape: the shape of the value.
        numbers: mean and standard deviation, or minimum and maximum.
        dtype: the dtype of the value.
        seed: two integers.
    """
    first, second = (tf.convert_to_tensor(number, dtype) for number in numbers)
    return _traced(kind, tf.zeros([]).device)(tf.constant(shape, tf.int32), seed, first, second)


@functools.cache
def _traced(kind: str, device: str) -> Callable[..., tf.Tensor]:
    # Seed and numbers are arguments, since TensorFlow would compute with constants while it traces.
    @tf.function(autograph=False, reduce_retracing=True)
    def drawn(shape: tf.Tensor, seed: tf.Tensor, first: tf.Tensor, second: tf.Tensor) -> tf.Tensor:
        with tf.device(device):
            return _DRAWS[kind](shape, seed, first, second, dtype=first.dtype)

    return drawn
