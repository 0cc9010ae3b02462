"""Programs that compute something else under a strategy than on one device, for tests that must find out where."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

L: Any = keras.layers
X = np.random.default_rng(0).normal(size=(24, 6)).astype("float32")
Y = np.random.default_rng(1).normal(size=(24, 3)).astype("float32")


class ScalesGradient(keras.layers.Layer):
    """Multiplies the gradient that it passes on by its number of rows."""

    def call(self, x: Any) -> Any:
        @tf.custom_gradient
        def scaled(x: Any) -> Any:
            return tf.identity(x), lambda gradient: gradient * tf.cast(tf.shape(x)[0], gradient.dtype)

        return scaled(x)


class Draws(keras.layers.Layer):
    """Adds random numbers that are the same for the first rows of each replica."""

    def call(self, x: Any) -> Any:
        return x + tf.random.stateless_normal(tf.shape(x), seed=[1, 2])


class RootMeanSquare(keras.metrics.Metric):
    """Keeps a root of the predictions of the last batch, which is no sum over rows."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.root = self.add_variable((), "zeros", name="root")

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.root.assign(tf.sqrt(tf.reduce_mean(tf.square(predicted))))

    def result(self) -> Any:
        return self.root


class MeanOfLarge(keras.losses.Loss):
    """Averages by itself: over the errors that are large."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(reduction=None)

    def call(self, y: Any, predicted: Any) -> Any:
        errors = tf.square(y - predicted)
        return tf.reduce_sum(errors) / tf.reduce_sum(tf.cast(errors > 0.5, errors.dtype))


class AddsMeanOfPositive(keras.layers.Layer):
    """Adds a loss that averages by itself: over the positive numbers."""

    def call(self, x: Any) -> Any:
        self.add_loss(tf.reduce_sum(tf.square(x)) / tf.reduce_sum(tf.cast(x > 0, x.dtype)))
        return x


def model_of(inner: Callable[[], Any] | None = None) -> Any:
    """Returns a model of three dense layers, with another layer after the first of them."""
    keras.utils.set_random_seed(1)
    middle = [] if inner is None else [inner()]
    return keras.Sequential(
        [
            keras.Input((6,)),
            L.Dense(8, "tanh", name="first"),
            *middle,
            L.Dense(8, "tanh", name="second"),
            L.Dense(3, name="last"),
        ]
    )
