"""`strategies.exact`: training under our strategies has equal bits in every run, and the numbers of one device."""

from __future__ import annotations

from collections.abc import Iterator

import keras
import numpy as np
import pytest
import tensorflow as tf
from tensorflow.python.framework import config

import strategies


@pytest.fixture
def exactly() -> Iterator[None]:
    before = tf.config.experimental.tensor_float_32_execution_enabled()
    strategies.exact()
    yield
    config.disable_op_determinism()
    tf.config.experimental.enable_tensor_float_32_execution(before)


def batches() -> tf.data.Dataset:
    """Returns a dataset that is shuffled and mapped in parallel; its last batch is smaller."""
    rows = np.random.default_rng(3).standard_normal((45, 8, 8, 3)).astype("float32")
    labels = np.arange(45) % 4
    data = tf.data.Dataset.from_tensor_slices((rows, labels)).shuffle(45)
    return data.map(lambda x, y: (x * 2.0, y), num_parallel_calls=4).batch(10).prefetch(2)


def train(strategy: tf.distribute.Strategy | None, *, dropout: float) -> list[np.ndarray]:
    """Trains a model with most kinds of random and summed ops for two epochs; returns weights and logs."""
    keras.utils.set_random_seed(1)
    with (strategy or tf.distribute.get_strategy()).scope():
        model = keras.Sequential(
            [
                keras.Input((8, 8, 3)),
                keras.layers.Conv2D(6, 3, activation="relu"),
                keras.layers.BatchNormalization(synchronized=True),
                keras.layers.MaxPooling2D(),
                keras.layers.Flatten(),
                keras.layers.Dropout(dropout),
                keras.layers.Dense(4),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-2, global_clipnorm=1.0), loss, metrics=["accuracy"])
    logs = model.fit(batches(), epochs=2, shuffle=False, verbose=0).history
    return [*model.get_weights(), *(np.asarray(values) for values in logs.values())]


@pytest.mark.usefixtures("exactly")
def test_the_numbers_of_one_device_and_the_same_bits_twice() -> None:
    def mirrored() -> tf.distribute.Strategy:
        return strategies.MirroredStrategy(["CPU:0", "CPU:1"])

    for ours, plain in zip(train(mirrored(), dropout=0.0), train(None, dropout=0.0), strict=True):
        np.testing.assert_allclose(ours, plain, rtol=0, atol=1e-6)
    for first, second in zip(train(mirrored(), dropout=0.5), train(mirrored(), dropout=0.5), strict=True):
        np.testing.assert_array_equal(first, second)
    assert not tf.config.experimental.tensor_float_32_execution_enabled()


@pytest.mark.usefixtures("exactly")
def test_arrays_without_a_seed_are_refused_by_tensorflow_and_ours_needs_none() -> None:
    # `fit` without shuffling draws nothing: any draw would be the strategy's own.
    tf.random.set_seed(None)
    x = np.ones((6, 3), "float32")
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
        model.compile("sgd", "mse")
    strategy = model.distribute_strategy
    strategies.measure_communication(strategy)
    model.fit(x, x[:, :1], batch_size=4, shuffle=False, verbose=0)
    # TensorFlow refuses to read the clock.
    assert strategies.seconds_waited(strategy) == strategies.SecondsWaited(0.0, 0.0)
    with pytest.raises(RuntimeError, match="Random ops require a seed"):
        model.fit(x, x[:, :1], batch_size=4, verbose=0)
