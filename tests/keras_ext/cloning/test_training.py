"""A copy is compiled with what its model was compiled with: functions and classes that no registry knows, too."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_ext
import strategies
from tests.strategies.parity.harness import TOLERANCE

X, Y = np.linspace(0, 1, 48).reshape(8, 6).astype("float32"), np.ones((8, 2), "float32")


def relative(y: Any, p: Any) -> Any:
    return ops.mean(ops.abs(y - p), axis=-1)


class Falling(keras.optimizers.schedules.LearningRateSchedule):
    def __init__(self, first: float) -> None:
        self.first = first

    def __call__(self, step: Any) -> Any:
        return self.first / (1.0 + ops.cast(step, "float32"))

    def get_config(self) -> dict[str, Any]:
        return {"first": self.first}


class OwnOptimizer(keras.optimizers.SGD):
    pass


class OwnMetric(keras.metrics.Mean):
    def update_state(self, y: Any, p: Any, sample_weight: Any = None) -> Any:
        return super().update_state(ops.abs(y - p), sample_weight)


@pytest.mark.parametrize("scales", [False, True])
def test_functions_and_classes_of_a_program(scales: bool) -> None:
    def made(strategy: Any) -> Any:
        keras.utils.set_random_seed(1)
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(4), keras.layers.Dense(2)])
        optimizer: Any = OwnOptimizer(Falling(0.1), momentum=0.5)
        if scales:
            optimizer = keras.optimizers.LossScaleOptimizer(optimizer)
        wrapped = keras.metrics.MeanMetricWrapper(relative, name="wrapped")
        metrics = [relative, lambda y, p: ops.abs(y - p), "mae", OwnMetric(name="own"), wrapped]
        model.compile(optimizer, lambda y, p: ops.mean(ops.square(y - p)), metrics=metrics)
        return keras_ext.parallelize(model) if strategy else model

    one = made(None)
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2}).scope():
        other = made(tf.distribute.get_strategy())
    assert type(other.optimizer) is type(one.optimizer)
    histories = [model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history for model in (one, other)]
    assert histories[0].keys() == histories[1].keys()
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=0, atol=TOLERANCE, err_msg=name)
    for before, after in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=TOLERANCE)
