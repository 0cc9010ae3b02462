"""A layer that takes time, but no CPU time."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf


class Sleep(keras.layers.Layer):
    """Multiplies by one weight and sleeps; in its backward pass, sleeps once for each of its two gradients.

    Args:
        seconds: seconds of each sleep.
    """

    def __init__(self, seconds: float, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.seconds = seconds

    def build(self, input_shape: Any) -> None:
        """Makes the weight."""
        self.scale = self.add_weight(shape=(), initializer="ones", name="scale")

    def call(self, inputs: Any) -> Any:
        """Maps inputs of any shape to outputs of the same shape."""

        @tf.custom_gradient
        def asleep(x: tf.Tensor, scale: tf.Tensor) -> tuple[tf.Tensor, Callable[[tf.Tensor], Any]]:
            def backward(upstream: tf.Tensor) -> tuple[tf.Tensor, tf.Tensor]:
                woken = _later(upstream, self.seconds)
                # One after the other, as a device computes them.
                return woken * scale, tf.reduce_sum(_later(woken, self.seconds) * x)

            return _later(x * scale, self.seconds), backward

        return asleep(inputs, tf.convert_to_tensor(self.scale))

    def compute_output_shape(self, input_shape: Any) -> Any:
        """Returns the shape of the inputs."""
        return input_shape

    def get_config(self) -> dict[str, Any]:
        """Returns the constructor's arguments."""
        return {**super().get_config(), "seconds": self.seconds}


def _later(x: tf.Tensor, seconds: float) -> tf.Tensor:
    def wait(value: Any) -> Any:
        time.sleep(seconds)
        return value

    # Not stateful: TensorFlow runs stateful ops one after the other, even on different devices.
    result = tf.numpy_function(wait, [x], x.dtype, stateful=False)
    result.set_shape(x.shape)
    return result
