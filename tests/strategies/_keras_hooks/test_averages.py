"""Averages that a step takes by hand, where each batch has the same number of rows: `batches/row_divisors`."""

from __future__ import annotations

import contextlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import strategies
from tests.strategies.parity.harness import features

X, Y = features(6, 4), features(6, 1, seed=1)


def mirrored() -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy(["CPU:0", "CPU:1"])


class AverageLoss(keras.Model):
    """Takes an average of the errors by hand, as TensorFlow's tutorial does, and scales its gradients."""

    def __init__(self, average: Callable[[Any, Any], Any]) -> None:
        super().__init__()
        self.head, self.average = keras.layers.Dense(2), average

    def call(self, x: Any) -> Any:
        return self.head(x)

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.average(tf.reduce_sum(tf.square(self(x) - y), axis=1), x)
        variables, count = self.trainable_variables, tf.cast(tf.shape(x)[0], "float32")
        gradients = [each * count / 6.0 for each in tape.gradient(loss, variables)]
        self.optimizer.apply_gradients(zip(gradients, variables, strict=True))
        return {"loss": loss}


def by_weights(errors: Any, x: Any) -> Any:
    weights = 0.5 * tf.ones_like(x[:, 0])
    return tf.reduce_sum(errors * weights) / tf.reduce_sum(weights)


@pytest.mark.parametrize("eagerly", [False, True])
def test_static_batches(eagerly: bool) -> None:
    """Two replicas have rows of two numbers: 6 is the size of the batch, and the number of terms of a replica."""

    def losses(average: Callable[[Any, Any], Any], strategy: Any) -> list[float]:
        keras.utils.set_random_seed(3)
        with strategy.scope() if strategy is not None else contextlib.nullcontext():
            model = AverageLoss(average)
            model.compile(keras.optimizers.SGD(0.1), run_eagerly=eagerly)
        data = tf.data.Dataset.from_tensor_slices((X, Y)).batch(6, drop_remainder=True)
        return [model.fit(data, epochs=2, shuffle=False, verbose=0).history["loss"]]

    for average in (
        lambda errors, x: ops.sum(errors) / 5.0,
        lambda errors, x: ops.sum(errors) / float(x.shape[0]),
        lambda errors, x: ops.sum(errors / float(x.shape[0])),
        lambda errors, x: ops.sum(errors) / tf.cast(tf.shape(x)[0], "float32"),
        lambda errors, x: ops.mean(errors) * tf.cast(tf.shape(x)[0], "float32"),
        lambda errors, x: ops.sum(errors) / 12.0,
        by_weights,
    ):
        np.testing.assert_allclose(losses(average, mirrored()), losses(average, None), rtol=1e-6)
    for average in (
        lambda errors, x: ops.sum(errors) / 6.0,
        lambda errors, x: ops.sum(errors) * (1.0 / x.shape[0]),
        lambda errors, x: ops.sum(errors * (1.0 / x.shape[0])),
    ):
        with pytest.warns(strategies.DifferenceWarning, match=r"may be the number of terms.*strategies.global_rows"):
            losses(average, mirrored())
