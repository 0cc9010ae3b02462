"""A layer that takes time, and no processor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class Sleep(keras.layers.Layer):
    """Multiplies by one weight and sleeps; sleeps twice as long in its backward pass.

    Args:
        seconds: of sleep in the forward pass.
    """

    def __init__(self, seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def build(self, input_shape: Any) -> None:
        """Makes the weight."""
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs: Any) -> Any:
        """Maps any shape to the same."""

        @tf.custom_gradient
        def asleep(x: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], tf.Tensor]]:
            return _later(x, self.seconds), lambda upstream: _later(upstream, 2 * self.seconds)

        # Both gradients, of the weight and of the inputs, come after the sleep in the backward pass.
        return asleep(inputs * self.scale)

    def compute_output_shape(self, input_shape: Any) -> Any:
        """The shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the arguments that make a layer like this one."""
        return {**super().get_config(), "seconds": self.seconds}


def _later(x: tf.Tensor, seconds: float) -> tf.Tensor:
    def wait(value: Any) -> Any:
        time.sleep(seconds)
        return value

    # Not stateful: such ops TensorFlow does one after the other, on whatever devices they are.
    result = tf.numpy_function(wait, [x], x.dtype, stateful=False)
    result.set_shape(x.shape)
    return result
