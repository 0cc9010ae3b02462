"""The common rows of all readers, 22 in batches of 5: dense, sparse, ragged or with two inputs; and models of them."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import tensorflow as tf

#: Batches of 5, 5, 5, 5 and 2 rows: not all are divisible by any number of replicas.
NUM_ROWS, BATCH_SIZE, NUM_BATCHES = 22, 5, 5

_random = np.random.default_rng(5)
X = _random.standard_normal((NUM_ROWS, 4)).astype("float32")
Y = _random.standard_normal((NUM_ROWS, 2)).astype("float32")
#: Sample weights; some are 0.
WEIGHTS = (_random.integers(0, 4, NUM_ROWS) / 2).astype("float32")
#: About two of three numbers are 0; there is a row of zeros.
SPARSE = np.where(_random.random((NUM_ROWS, 4)) < 0.3, X, 0).astype("float32")
SPARSE[3] = 0
#: The second input of models with two.
SECOND = _random.standard_normal((NUM_ROWS, 3)).astype("float32")
_LENGTHS = _random.integers(0, 4, NUM_ROWS)


def batch_of(index: int) -> slice:
    """Returns the rows of a batch of the epoch."""
    return slice(BATCH_SIZE * index, BATCH_SIZE * (index + 1))


def rows_from(first: int) -> slice:
    """Returns the rows of an epoch from a given batch on."""
    return slice(BATCH_SIZE * first, NUM_ROWS)


def ragged(rows: slice = slice(None)) -> tf.RaggedTensor:
    """Returns rows of 0 to 3 numbers."""
    return tf.ragged.constant([list(range(1, n + 1)) for n in _LENGTHS[rows]], dtype=tf.float32, ragged_rank=1)


def sparse(rows: slice = slice(None)) -> tf.SparseTensor:
    """Returns rows of `SPARSE`."""
    return tf.sparse.from_dense(SPARSE[rows])


@keras.saving.register_keras_serializable("tests")
class SumOfRow(keras.layers.Layer):
    """Returns the sums of each row, dense or ragged, and of its squares."""

    def call(self, x: Any) -> Any:
        """Returns the sums, of shape (rows, 2)."""
        if isinstance(x, keras.KerasTensor):
            return keras.KerasTensor((x.shape[0], 2), "float32")
        return tf.stack([tf.reduce_sum(x, axis=1), tf.reduce_sum(x * x, axis=1)], axis=1)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the two sums."""
        return (input_shape[0], 2)


def _dense() -> keras.Model:
    inputs = keras.Input((4,))
    return keras.Model(inputs, _body(inputs))


def _sparse() -> keras.Model:
    inputs = keras.Input((4,), sparse=True)
    return keras.Model(inputs, _body(inputs))


def _ragged() -> keras.Model:
    inputs = keras.Input((None,), ragged=True)
    return keras.Model(inputs, _body(keras.layers.Rescaling(0.1)(SumOfRow()(inputs))))


def _two() -> keras.Model:
    inputs = {"first": keras.Input((4,), name="first"), "second": keras.Input((3,), name="second")}
    return keras.Model(inputs, _body(keras.layers.Concatenate()([inputs["first"], inputs["second"]])))


def _body(x: Any) -> Any:
    return keras.layers.Dense(2)(keras.layers.Dense(8, "tanh")(x))


#: Functions that make a model, by the kind of its inputs.
MODELS: Mapping[str, Callable[[], keras.Model]] = {"dense": _dense, "sparse": _sparse, "ragged": _ragged, "two": _two}


def compiled(model: Any) -> None:
    """Compiles a model with an optimizer that has slots and does not magnify rounding."""
    optimizer = keras.optimizers.Adam(0.01, epsilon=0.1)
    model.compile(optimizer, "mse", metrics=["mae"], weighted_metrics=["mse"], auto_scale_loss=False)
    model.optimizer.build(model.trainable_variables)
