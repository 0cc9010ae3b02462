"""Steps that need all rows at once: the error explains why one device can run them, and names the fix."""

from __future__ import annotations

import re
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import strategies
from strategies._keras_hooks.split_batches import explained

X = np.random.default_rng(0).normal(size=(16, 4)).astype("float32")
Y = X[:, :1].copy()


class Reshapes(keras.Model):
    """Takes the batch's static size for the number of rows in its step."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        return super().train_step((tf.reshape(x, (8, 4)), y))


class Convolves(keras.layers.Layer):
    """A graph convolution over all rows, which are the nodes of one graph."""

    def build(self, shapes: Any) -> None:
        self.kernel = self.add_weight(shape=(shapes[0][-1], 1), name="kernel")

    def call(self, inputs: Any) -> Any:
        nodes, adjacency = inputs
        return ops.matmul(adjacency, ops.matmul(nodes, self.kernel))


# Without static batch sizes, TensorFlow fails when the step runs; the warning about mixed rows comes earlier.
@pytest.mark.filterwarnings("ignore::strategies.DifferenceWarning")
@pytest.mark.parametrize("drop_remainder", [True, False])
@pytest.mark.parametrize("eagerly", [True, False])
def test_a_batch_reshaped_to_its_static_size(eagerly: bool, drop_remainder: bool) -> None:
    for num_replicas in (1, 2):
        with strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)]).scope():
            inputs = keras.Input((4,))
            model = Reshapes(inputs, keras.layers.Dense(1)(inputs))
            model.compile("sgd", "mse", run_eagerly=eagerly)
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(8, drop_remainder=drop_remainder)
        if num_replicas == 1:
            model.fit(batches, shuffle=False, verbose=0)
            continue
        with pytest.raises(
            ValueError, match=r"(?s)each of 2 replicas runs it with its own rows.*write -1, or tf.shape"
        ):
            model.fit(batches, shuffle=False, verbose=0)


def test_a_batch_that_is_one_graph() -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        nodes, adjacency = keras.Input((4,)), keras.Input((16,))
        model = keras.Model([nodes, adjacency], Convolves()([nodes, adjacency]))
        model.compile("sgd", "mse")
    with pytest.raises(ValueError, match=r"(?s)adjacency matrix.*ValueError.*Dimensions must be equal, but"):
        model.fit([X, np.eye(16, dtype="float32")], Y, batch_size=16, verbose=0)


@pytest.mark.parametrize("text", ["Incompatible shapes: [5,3] vs. [4,3]", "Labels 8 and 4", "Received: 2 of 4"])
def test_other_errors_stay_as_they_are(text: str) -> None:
    with pytest.raises(ValueError, match=f"^{re.escape(text)}$"), explained(2):
        raise ValueError(text)
