"""State and masks of each replica, and attributes of layers that replicas set."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from tests.strategies.parity.harness import Case, compare, execute, features, fit_arrays


@pytest.fixture(params=[2, pytest.param(4, marks=pytest.mark.parity_all)])
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


L = keras.layers


def penalised_before_statistics() -> keras.Model:
    """Returns a model with an all-reduce between the layer that adds a loss and the total."""
    model = keras.Sequential(
        [
            keras.Input((5,)),
            L.Dense(8, activity_regularizer=keras.regularizers.L2(0.1)),
            L.BatchNormalization(synchronized=True),
            L.Dense(1),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


def penalised_before_masked_loss() -> keras.Model:
    """Returns a model with an all-reduce in the loss, which divides by a count over all replicas."""
    model = keras.Sequential(
        [
            keras.Input((5,)),
            L.Lambda(lambda x: tf.cast(tf.abs(x) * 2, "int32"), output_shape=(5,)),
            L.Embedding(11, 4, mask_zero=True, activity_regularizer=keras.regularizers.L2(0.1)),
            L.SimpleRNN(1, return_sequences=True),
        ]
    )
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


class Remembering(keras.Model):
    """Sets attributes in ``call`` and reads them in ``compute_loss``, as variational autoencoders do."""

    def __init__(self) -> None:
        super().__init__()
        self.hidden = L.Dense(8, activation="tanh")
        self.statistics = L.BatchNormalization(synchronized=True)
        self.head = L.Dense(1)
        self.code: Any = None

    def call(self, x: Any, training: bool | None = None) -> Any:
        self.code = self.hidden(x)
        self.all = [self.code, x]
        return self.head(self.statistics(self.code, training=training))

    def compute_loss(self, x: Any = None, y: Any = None, y_pred: Any = None, *args: Any, **kwargs: Any) -> Any:
        code, given = self.all
        return super().compute_loss(x, y, y_pred, *args, **kwargs) + keras.ops.mean(
            keras.ops.square(self.code) * keras.ops.abs(code - given[:, :1])
        )


def remembering() -> keras.Model:
    model = Remembering()
    model.compile(keras.optimizers.SGD(0.05), "mse")
    return model


class Normalising(keras.layers.Layer):
    """A recurrent cell with an all-reduce."""

    state_size = 4

    def __init__(self) -> None:
        super().__init__()
        self.statistics = L.BatchNormalization(synchronized=True)

    def build(self, input_shape: Any) -> None:
        self.statistics.build(input_shape)

    def call(self, inputs: Any, states: Any, training: Any = None) -> Any:
        return self.statistics(inputs, training=training), states


class Late(keras.layers.Layer):
    """Makes a tensor while it is built, before an all-reduce."""

    def __init__(self) -> None:
        super().__init__()
        self.statistics = L.BatchNormalization(synchronized=True)
        self.offset: Any = None

    def build(self, input_shape: Any) -> None:
        self.offset = keras.ops.ones(input_shape[-1])

    def call(self, x: Any) -> Any:
        self.seen = x
        return self.statistics(x, training=True) + self.offset


class TestAttributes:
    # 13 rows in batches of 7: the replicas have different numbers of rows.
    x, y = features(13, 5), features(13, 1, seed=1)

    @pytest.mark.parametrize("make", [penalised_before_statistics, penalised_before_masked_loss, remembering])
    def test_a_replica_finds_what_it_set(
        self, strategy: strategies.MirroredStrategy, make: Callable[[], keras.Model]
    ) -> None:
        y = np.repeat(self.y[:, None], 5, axis=1) if make is penalised_before_masked_loss else self.y
        case = Case("", make, fit_arrays(self.x, y, batch_size=7, predict=False))
        difference = compare(execute(case, None), execute(case, strategy))
        assert difference.largest <= case.tolerance, difference

    def test_of_a_step_that_ran_eagerly_the_first_replicas_stay(self, strategy: strategies.MirroredStrategy) -> None:
        with strategy.scope():
            layer, before = Late(), L.Dense(2, activity_regularizer="l2")
            before.build((None, 5))

        def step(x: tf.Tensor) -> Any:
            layer(x)
            before(x)
            # One more all-reduce.
            tf.distribute.get_replica_context().all_reduce(tf.distribute.ReduceOp.SUM, tf.reduce_sum(x))
            return layer.seen, before.losses[0]

        given = tf.reshape(tf.range(20.0), (4, 5))
        parts = [given[: r + 1] for r in range(strategy.num_replicas_in_sync)]
        per_replica = strategy.experimental_distribute_values_from_function(
            lambda context: parts[context.replica_id_in_sync_group]
        )
        seen, losses = map(strategy.experimental_local_results, strategy.run(step, args=(per_replica,)))
        for part, own in zip(parts, seen, strict=True):
            np.testing.assert_array_equal(own, part)
        assert len({float(loss) for loss in losses}) == len(losses)
        assert layer.seen is seen[0]
        assert [float(loss) for loss in before.losses] == [float(losses[0])]

    def test_losses_of_a_stateless_call(self, strategy: strategies.MirroredStrategy) -> None:
        with strategy.scope():
            model = penalised_before_statistics()
        state = model.trainable_variables, model.non_trainable_variables

        @tf.function
        def step(x: tf.Tensor) -> Any:
            # The addition of 0 turns variables into the replica's values.
            given = [[variable + 0 for variable in variables] for variables in state]
            return model.stateless_call(*given, x, training=True, return_losses=True)[2]

        x = self.x[:4] if strategy.num_replicas_in_sync == 4 else self.x[:2]
        rows = next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(x).rebatch(len(x)))))
        (losses,) = strategy.run(step, args=(rows,))
        received = [float(value) for value in strategy.experimental_local_results(losses)]
        hidden = model.layers[0](x).numpy()
        np.testing.assert_allclose(received, 0.1 * np.square(hidden).sum(axis=1), rtol=1e-6)

    def test_each_replica_drops_of_its_own_rows_at_every_step_of_a_cell(
        self, strategy: strategies.MirroredStrategy
    ) -> None:
        with strategy.scope():
            cells = [L.SimpleRNNCell(4, dropout=0.5, recurrent_dropout=0.5, seed=1), Normalising()]
            layer = L.RNN(cells, unroll=True, return_sequences=True)
            layer.build((None, 3, 4))

        @tf.function
        def step(x: tf.Tensor) -> tf.Tensor:
            return layer(x, training=True)

        # 5 rows: the replicas have different numbers of rows.
        rows = next(iter(strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors(features(5, 3, 4)))))
        outputs = strategy.experimental_local_results(strategy.run(step, args=(rows,)))
        assert sum(len(output) for output in outputs) == 5
