"""State that replicas write for themselves, and masks that they draw for themselves."""

from __future__ import annotations

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from tests.strategies.parity.harness import features


@pytest.fixture(params=[2, 4])
def strategy(request: pytest.FixtureRequest) -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


def normalised() -> keras.Model:
    model = keras.Sequential([keras.Input((5,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    return model


def components(variable: keras.Variable) -> list[np.ndarray]:
    return [component.numpy() for component in variable.value.values]


class TestBatchNormalization:
    # 11 rows, batches of 7: 4 + 3 on two replicas, then 2 + 2; on four 2, 2, 2, 1, then 1 each.
    x, y = features(11, 5), features(11, 1, seed=1)

    def test_statistics_agree_on_all_replicas_after_fit(self, strategy: strategies.MirroredStrategy) -> None:
        with strategy.scope():
            model = normalised()
        model.fit(self.x, self.y, batch_size=7, epochs=2, verbose=0)
        for variable in model.layers[0].non_trainable_variables:
            first, *others = components(variable)
            for other in others:
                np.testing.assert_array_equal(first, other)

    def test_statistics_are_the_row_weighted_mean_over_replicas(self, strategy: strategies.MirroredStrategy) -> None:
        with strategy.scope():
            model = normalised()
        model.fit(self.x, self.y, batch_size=11, epochs=1, shuffle=False, verbose=0)
        parts = np.array_split(self.x, strategy.num_replicas_in_sync)
        layer = model.layers[0]
        mean = sum(len(part) / 11 * part.mean(axis=0) for part in parts)
        variance = sum(len(part) / 11 * part.var(axis=0) for part in parts)
        np.testing.assert_allclose(layer.moving_mean.numpy(), 0.01 * mean, atol=1e-6)
        np.testing.assert_allclose(layer.moving_variance.numpy(), 0.99 + 0.01 * variance, atol=1e-6)

    def test_a_replica_without_rows_adds_nothing(self, strategy: strategies.MirroredStrategy) -> None:
        with strategy.scope():
            model = normalised()
        model.fit(self.x[:1], self.y[:1], batch_size=1, verbose=0)
        np.testing.assert_allclose(model.layers[0].moving_mean.numpy(), 0.01 * self.x[0], atol=1e-6)

    def test_evaluate_sees_the_same_statistics_wherever_the_row_lies(
        self, strategy: strategies.MirroredStrategy
    ) -> None:
        with strategy.scope():
            model = normalised()
        model.fit(self.x, self.y, batch_size=7, verbose=0)
        forward = model.predict(self.x, verbose=0)
        backward = model.predict(self.x[::-1], verbose=0)[::-1]
        np.testing.assert_allclose(forward, backward, atol=1e-6)

    def test_agree_in_a_custom_loop_and_eagerly(self, strategy: strategies.MirroredStrategy) -> None:
        with strategy.scope():
            layer = keras.layers.BatchNormalization()
            layer.build((None, 5))
        dataset = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices(self.x).batch(6))
        in_graph = tf.function(lambda x: layer(x, training=True))
        for rows in dataset:
            strategy.run(lambda x: layer(x, training=True), args=(rows,))
        for _ in range(2):
            for rows in dataset:
                strategy.run(in_graph, args=(rows,))
        first, *others = components(layer.moving_mean)
        for other in others:
            np.testing.assert_array_equal(first, other)


class TestDropout:
    def test_masks_differ_between_replicas(self, strategy: strategies.MirroredStrategy) -> None:
        with strategy.scope():
            layer = keras.layers.Dropout(0.5, seed=3)
        run = tf.function(lambda: strategy.run(lambda: layer(tf.ones((64,)), training=True)))
        masks = [tuple(value.numpy()) for value in strategy.experimental_local_results(run())]
        assert len(set(masks)) == strategy.num_replicas_in_sync

    def test_first_replica_draws_what_one_device_draws(self, strategy: strategies.MirroredStrategy) -> None:
        with strategy.scope():
            layer = keras.layers.Dropout(0.5, seed=3)
        plain = keras.layers.Dropout(0.5, seed=3)
        received = strategy.experimental_local_results(strategy.run(lambda: layer(tf.ones((64,)), training=True)))[0]
        np.testing.assert_array_equal(received, plain(tf.ones((64,)), training=True))

    def test_seeds_kept_and_saved_are_those_of_one_device(
        self, strategy: strategies.MirroredStrategy, tmp_path_factory: pytest.TempPathFactory
    ) -> None:
        def make() -> keras.Model:
            model = keras.Sequential([keras.Input((5,)), keras.layers.Dropout(0.5, seed=3), keras.layers.Dense(1)])
            model.compile("sgd", "mse")
            return model

        with strategy.scope():
            model = make()
        plain = make()
        for each in (model, plain):
            each.fit(features(8, 5), features(8, 1), batch_size=4, verbose=0)
        for replica in components(model.layers[0].seed_generator.state):
            np.testing.assert_array_equal(replica, plain.layers[0].seed_generator.state.numpy())
