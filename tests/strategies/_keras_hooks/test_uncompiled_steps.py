"""`jit_compile` where XLA cannot compile: steps run without XLA, and the log says so once. See `compiled_steps`."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from tests.strategies.parity.harness import features
from tests.would_be_gpus import would_be_gpus

X, Y = features(24, 6), features(24, 1, seed=1)


class OwnStep(keras.Sequential):
    """A model with a custom step."""

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape() as tape:
            loss = self.compute_loss(x, y, self(x))
        gradients = tape.gradient(loss, self.trainable_variables)
        self.optimizer.apply(gradients, self.trainable_variables)
        return {"loss": loss}


class Told(keras.layers.Layer):
    """Calls Python from the graph."""

    def call(self, x: Any) -> Any:
        return tf.ensure_shape(tf.numpy_function(lambda value: value, [x], tf.float32, stateful=False), x.shape)


class Chosen(keras.layers.Layer):
    """Sums a selection of rows."""

    def call(self, x: Any) -> Any:
        return x + tf.reduce_sum(tf.boolean_mask(x, x[:, 0] > 0))


def _parts(*layers: keras.layers.Layer) -> list[Any]:
    return [keras.Input((6,)), *layers, keras.layers.Dense(1)]


# One of the models sums over the rows of its replica.
@pytest.mark.filterwarnings("ignore::strategies.DifferenceWarning")
@pytest.mark.parametrize(
    ("make", "mesh", "reason"),
    [
        (lambda: OwnStep(_parts()), None, "OwnStep has a step of its own"),
        (
            lambda: keras.Sequential(_parts(keras.layers.BatchNormalization(synchronized=True))),
            None,
            "runs a collective",
        ),
        (lambda: keras.Sequential(_parts(Told())), None, "does not have its operations"),
        (lambda: keras.Sequential(_parts(Chosen())), None, "known only when they have run"),
        (lambda: keras_ext.parallelize(keras.Sequential(_parts())), {"data": 2, "tensor": 2}, "several devices"),
        (
            lambda: keras_ext.PipelineModel(keras.Sequential(_parts(keras.layers.Dense(3))), num_microbatches=2),
            {"data": 2, "pipe": 2},
            "several devices",
        ),
    ],
    ids=["own train_step", "synchronized", "Python", "chosen rows", "split", "pipeline"],
)
def test_what_is_not_compiled_is_reported_once(
    make: Callable[[], keras.Model], mesh: dict[str, int] | None, reason: str, said: Any
) -> None:
    weights = []
    for jit in (True, False):
        keras.utils.set_random_seed(1)
        strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(4 if mesh else 2)], mesh=mesh)
        with strategy.scope():
            model = make()
            model.compile("sgd", "mse", jit_compile=jit)
        model.fit(X, Y, batch_size=7, epochs=2, verbose=0, shuffle=False)
        weights.append(model.get_weights())
    for one, other in zip(*weights, strict=True):
        np.testing.assert_array_equal(one, other)
    [(level, message)] = said()
    assert level == "WARNING"
    assert reason in message


def test_auto_is_on_for_gpus_only_and_says_less(said: Any) -> None:
    strategy = strategies.MirroredStrategy(["CPU:1", "CPU:2"])
    with strategy.scope():
        model = keras.Sequential(_parts())
        model.compile("sgd", "mse")
        assert model.jit_compile is False
        with would_be_gpus():
            model = OwnStep(_parts())
            model.compile("sgd", "mse")
    assert model.jit_compile is True
    model.fit(X, Y, verbose=0)
    assert [level for level, _ in said()] == ["INFO"]
    with would_be_gpus(), strategy.scope():
        never = keras.Sequential(_parts())
        never.layers[0].supports_jit = False
        never.compile("sgd", "mse")
    assert never.jit_compile is False
