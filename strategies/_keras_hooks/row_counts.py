"""`ops.shape` and `tf.size`: a replica's number of rows, where it is static, is marked as a number of rows."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import tensorflow as tf
from keras.src.backend.tensorflow import core

from strategies._keras_hooks.wrapping import wrap
from strategies.batches import shares
from strategies.batches.row_counts import RowCount


def install() -> None:
    """Wraps the reading of shapes and sizes."""
    wrap(core, "shape", _shape)
    wrap(tf, "size", _size)


def _size(original: Callable[..., Any], input: Any, out_type: tf.DType | None = None, name: str | None = None) -> Any:
    share = shares.current()
    if share is None or not share.in_trainer or share.num_replicas == 1 or not isinstance(input, tf.Tensor):
        return original(input, out_type, name)
    # With a static shape TensorFlow would return a constant, which does not show whose size it is.
    return tf.raw_ops.Size(input=input, out_type=out_type or tf.int32, name=name)


def _shape(original: Callable[[Any], Any], x: Any) -> Any:
    found = original(x)
    share = shares.current()
    if share is None or not share.in_trainer or share.num_replicas == 1:
        return found
    is_known = isinstance(found, tuple) and found and isinstance(found[0], int)
    if is_known and isinstance(x, tf.Tensor) and found[0] in share.num_rows:
        return (RowCount.from_first_dim(x), *found[1:])
    return found
