"""The maximum over replicas of gradients that are next values, and float8 models in custom training steps."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies._tf_internals import Mirrored, PerReplica
from strategies.batches.divided_batch import divide
from strategies.batches.rows import Rows
from strategies.batches.shares import Share
from strategies.replica.overwritten import note_owner
from strategies.steps.layout import DataParallelGroup, ReplicaLayout
from strategies.steps.maxima import with_maxima

LAYOUT = ReplicaLayout((DataParallelGroup(("CPU:0", "CPU:1")),))


class Owner:
    overwrite_with_gradient = True


OWNER = Owner()


def shares(*rows: int) -> list[Share]:
    return divide(Rows(rows, sum(rows)), 0, 2, 2, "mean", lambda replica, graph: tf.constant(0.0))


def pair(first: Any, second: Any) -> PerReplica:
    return PerReplica((tf.constant(first), tf.constant(second)))


def scale() -> tf.Variable:
    variable = tf.Variable([0.0, 0.0])
    note_owner(variable, OWNER)
    return variable


def test_only_those_that_replace_their_variable_are_joined() -> None:
    given = [pair([1.0, 5.0], [3.0, 2.0]), pair([1.0, 5.0], [3.0, 2.0]), None, tf.constant([7.0, 7.0])]
    joined, summed, nothing, alike = with_maxima(
        LAYOUT, given, [scale(), tf.Variable([0.0, 0.0]), scale(), scale()], shares(2, 2)
    )
    assert isinstance(joined, Mirrored)
    for value in joined.values:
        np.testing.assert_array_equal(value, [3.0, 5.0])
    assert (summed, nothing, alike) == (given[1], None, given[3])
    assert with_maxima(LAYOUT, given, None, []) == given


def test_a_replica_without_rows_counts_for_nothing() -> None:
    # Its value does not count as zero: the next values may be negative.
    [joined] = with_maxima(LAYOUT, [pair([-1.0, -5.0], [3.0, 2.0])], [scale()], shares(2, 0))
    np.testing.assert_array_equal(joined.values[1], [-1.0, -5.0])


def model() -> Any:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(8, "relu"), keras.layers.Dense(8, "relu"), keras.layers.Dense(2)]
    made = keras.Sequential([keras.Input((4,)), *layers])
    for layer, mode in zip(layers, ("float8", "int8", "int4"), strict=True):
        layer.quantize(mode)
    return made


X = np.random.default_rng(0).standard_normal((16, 4)).astype("float32")


@pytest.mark.parametrize("shard", ["optimizer", "weights"])
def test_the_file_of_a_trained_model_opens_in_plain_keras(shard: Any, tmp_path: Path) -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], shard=shard).scope():
        trained = model()
        trained.compile("adam", "mse")
    trained.fit(X, X[:, :2], batch_size=8, verbose=0)
    trained.save(tmp_path / "quantized.keras")
    again = keras.models.load_model(tmp_path / "quantized.keras")
    np.testing.assert_allclose(again.predict(X, verbose=0), trained.predict(X, verbose=0), rtol=0, atol=1e-6)
    # Keras creates the weights of a layer in another order if the layer is quantized from the start.
    for one, other in zip(trained.layers, again.layers, strict=True):
        values = {weight.name: weight.numpy() for weight in other.weights}
        for weight in one.weights:
            np.testing.assert_array_equal(weight.numpy(), values.pop(weight.name))
        assert not values


def test_a_layer_that_is_called_twice_is_warned_of() -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        inputs, layer = keras.Input((4,)), keras.layers.Dense(4, name="twice")
        own = keras.Model(inputs, layer(layer(inputs)))
        layer.quantize("float8")
        own.compile("sgd", "mse")
    with pytest.warns(strategies.DifferenceWarning, match="'twice/.*' is called several times.*Make a layer for"):
        own.fit(X, X, batch_size=8, verbose=0)


def test_a_loop_of_a_programs_own() -> None:
    rows = X

    def trained(strategy: tf.distribute.Strategy) -> list[np.ndarray]:
        with strategy.scope():
            own, optimizer = model(), keras.optimizers.SGD(0.1)
            optimizer.build(own.trainable_variables)

        def step(x: tf.Tensor) -> None:
            with tf.GradientTape() as tape:
                loss = tf.reduce_sum(tf.square(own(x, training=True) - x[:, :2])) / 8
            gradients = tape.gradient(loss, own.trainable_variables)
            optimizer.apply_gradients(zip(gradients, own.trainable_variables, strict=True))

        @tf.function
        def run(batch: Any) -> None:
            strategy.run(step, args=(batch,))

        dataset = tf.data.Dataset.from_tensor_slices(rows).batch(8)
        for batch in strategy.experimental_distribute_dataset(dataset):
            run(batch)
        return list(own.get_weights())

    plain = trained(tf.distribute.get_strategy())
    for one, other in zip(plain, trained(strategies.MirroredStrategy(["CPU:0", "CPU:1"])), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
