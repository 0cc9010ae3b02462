"""The refusals of a step of replicas; its numbers are in the parity cases and in `test_mirrored`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies


class KeepsRows(keras.metrics.Metric):
    """Keeps all labels, as a quantile needs them."""

    def __init__(self) -> None:
        super().__init__(name="kept")
        self.rows = tf.Variable(tf.zeros([0]), shape=(None,), trainable=False)

    def update_state(self, y: Any, predicted: Any, sample_weight: Any = None) -> None:
        self.rows.assign(tf.concat([self.rows, tf.reshape(y, [-1])], 0))

    def result(self) -> Any:
        return tf.reduce_max(self.rows)

    def reset_state(self) -> None:
        self.rows.assign(tf.zeros([0]))


@pytest.mark.parametrize("num_replicas", [1, 2])
def test_state_of_unknown_shape(num_replicas: int) -> None:
    x = np.ones((4, 3), "float32")
    with strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)]).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", metrics=[KeepsRows()])
    if num_replicas == 1:
        assert model.evaluate(x, x[:, :1], verbose=0)[1] == 1.0
        return
    with pytest.raises(ValueError, match=r"writes a variable whose shape changes.*model.predict.*of shape \(None,\)"):
        model.evaluate(x, x[:, :1], verbose=0)


@pytest.mark.filterwarnings("ignore:Using MirroredStrategy eagerly")
def test_replicas_that_synchronize_in_a_conditional() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])

    def step() -> Any:
        total = tf.constant(1.0)
        context = tf.distribute.get_replica_context()
        return tf.cond(total > 0, lambda: context.all_reduce("SUM", total), lambda: total)

    with pytest.raises(ValueError, match=r"inside of a tf.cond.*gradient_accumulation_steps=4.*choose by tf.where"):
        tf.function(lambda: strategy.run(step))()
