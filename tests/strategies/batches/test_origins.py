"""Origins of the tensors in a dataset's elements."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.batches.origins import Origin, origins_of

Data = tf.data.Dataset
DATA, PYTHON, RANDOM = Origin.DATA, Origin.PYTHON, Origin.RANDOM


def rows() -> tf.data.Dataset:
    return Data.from_tensor_slices((np.ones([8, 2], "float32"), np.ones([8], "int64")))


def generated() -> tf.data.Dataset:
    def rows() -> Iterator[Any]:
        yield np.ones(2), 1

    return Data.from_generator(rows, output_signature=(tf.TensorSpec([2]), tf.TensorSpec([])))


def noisy(x: tf.Tensor, y: tf.Tensor) -> Any:
    return x + tf.random.normal([2], seed=1), y


def branching(x: tf.Tensor, y: tf.Tensor) -> Any:
    return tf.cond(y > 0, lambda: x + tf.random.normal([2], seed=1), lambda: x), y


def by_python(x: tf.Tensor, y: tf.Tensor) -> Any:
    return tf.numpy_function(lambda value: value, [x], tf.float32), y


def mixed(x: tf.Tensor, y: tf.Tensor) -> Any:
    share = tf.random.uniform([], seed=1)
    return x * share, tf.cast(y, tf.float32) * share


def flipped() -> Callable[..., Any]:
    layer = keras.layers.RandomFlip(seed=1)
    return lambda x, y: (layer(tf.reshape(x, [1, 2, 1, 1])), y)


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        (lambda: rows().batch(2), [DATA, DATA]),
        (lambda: rows().shuffle(8, seed=1).repeat().map(lambda x, y: (y, x)).batch(2).prefetch(1), [DATA, DATA]),
        (lambda: rows().map(noisy, num_parallel_calls=2).batch(2), [RANDOM, DATA]),
        (lambda: rows().map(branching).batch(2), [RANDOM, DATA]),
        (lambda: rows().map(flipped()).batch(2), [RANDOM, DATA]),
        (lambda: rows().map(mixed).batch(2), [RANDOM, RANDOM]),
        (lambda: rows().map(noisy).map(lambda x, y: {"b": y, "a": x}).batch(2), [RANDOM, DATA]),
        (lambda: rows().map(noisy).map(lambda x, y: (x, tf.reduce_sum(x))).batch(2), [RANDOM, RANDOM]),
        (lambda: rows().map(by_python).batch(2), [PYTHON, DATA]),
        (lambda: generated().batch(2), [PYTHON, PYTHON]),
        (lambda: generated().map(noisy).batch(2), [RANDOM, PYTHON]),
        (lambda: Data.zip((rows().map(noisy), rows())).batch(2), [RANDOM, DATA, DATA, DATA]),
        (lambda: Data.range(2).interleave(lambda _: rows()).filter(lambda x, y: y > 0).batch(2), [DATA, DATA]),
        (lambda: Data.range(2).interleave(lambda _: rows().map(noisy)).batch(2), [RANDOM, RANDOM]),
        (lambda: rows().map(lambda x, y: (tf.RaggedTensor.from_row_lengths(x, [2]), y)).batch(2), [DATA, DATA]),
    ],
)
def test_origins(make: Callable[[], tf.data.Dataset], expected: list[Origin]) -> None:
    assert origins_of(make()) == expected
