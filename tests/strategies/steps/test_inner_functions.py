"""A tf.function that the replica's function calls is traced once and serves steps of other batch sizes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from tests.strategies.parity.harness import features

X, Y = features(24, 6), features(24, 1, seed=1)


def train(strategy: Any, *, in_graph: bool, sizes: tuple[int, ...] = (7, 8, 3, 7, 1)) -> list[float]:
    """Trains with an inner tf.function on batches of several sizes; returns the losses."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1, kernel_initializer="ones")])
        optimizer = keras.optimizers.SGD(0.1)
        loss_of = keras.losses.MeanSquaredError()

    @tf.function(input_signature=[tf.TensorSpec((None, 6)), tf.TensorSpec((None, 1))])
    def gradients_of(x: tf.Tensor, y: tf.Tensor) -> Any:
        with tf.GradientTape() as tape:
            loss = loss_of(y, model(x))
        return loss, tape.gradient(loss, model.trainable_variables)

    def step(x: tf.Tensor, y: tf.Tensor) -> tf.Tensor:
        loss, gradients = gradients_of(x, y)
        optimizer.apply(gradients, model.trainable_variables)
        return loss

    def run(x: Any, y: Any) -> tf.Tensor:
        return strategy.reduce("SUM", strategy.run(step, args=(x, y)), axis=None)

    losses = []
    for size in sizes:
        outer = tf.function(run) if in_graph else run
        dataset = tf.data.Dataset.from_tensors((X[:size], Y[:size]))
        losses += [float(outer(x, y)) for x, y in strategy.experimental_distribute_dataset(dataset)]
    return losses


@pytest.mark.parametrize("num_replicas", [2, 4])
@pytest.mark.parametrize("in_graph", [True, False], ids=["graph", "eager"])
def test_weighs_rows_of_the_running_step(num_replicas: int, in_graph: bool) -> None:
    strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])
    expected = train(tf.distribute.get_strategy(), in_graph=in_graph)
    np.testing.assert_allclose(train(strategy, in_graph=in_graph), expected, atol=1e-6)


def test_statistics_agree_whichever_graph_calls_it() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        layer = keras.layers.BatchNormalization()
        layer.build((None, 6))
    inner = tf.function(lambda x: layer(x, training=True), input_signature=[tf.TensorSpec((None, 6))])
    for _ in range(2):
        outer = tf.function(lambda x: strategy.run(lambda v: inner(v), args=(x,)))
        for x in strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(X).batch(8)):
            outer(x)
        first, second = (component.numpy() for component in layer.moving_mean.value.values)
        np.testing.assert_array_equal(first, second)


def test_a_count_over_replicas_is_refused_clearly() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        loss_of = keras.losses.MeanSquaredError(reduction="mean_with_sample_weight")
    inner = tf.function(lambda y: loss_of(y, 2 * y, sample_weight=y))
    with pytest.raises(ValueError, match=r"pass the tf\.function itself to strategy\.run"):
        strategy.run(lambda: inner(tf.ones((4, 1))))
