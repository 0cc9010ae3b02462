"""Shapes of tensors, static where they are known at tracing time."""

from __future__ import annotations

import math
from collections.abc import Sequence

import tensorflow as tf

#: Dimensions: integers where known at tracing time, else int32 scalars.
Shape = Sequence[int | tf.Tensor]


def shape_of(value: tf.Tensor) -> list[int | tf.Tensor]:
    """Returns the dimensions: integers where known, else int32 scalars."""
    static = value.shape.as_list()
    if None not in static:
        return list(static)
    dynamic = tf.shape(value)
    return [dynamic[dim] if size is None else size for dim, size in enumerate(static)]


def num_elements(shape: Shape | tf.Tensor) -> int | tf.Tensor:
    """Returns the product of the dimensions: an integer if all are integers, else an int32 scalar."""
    return tf.reduce_prod(shape) if isinstance(shape, tf.Tensor) else math.prod(shape)
