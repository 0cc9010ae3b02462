"""Users' code around and inside the trainer's steps."""

from __future__ import annotations

import contextlib
import warnings
from collections.abc import Sequence
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from tests.releases import has_keras
from tests.strategies.parity.harness import Case, compare, execute, features, fit_arrays, targets, vectors

X, Y = features(24, 6), features(24, 1, seed=1)


def mirrored(num_replicas: int) -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


class OwnMeans(keras.Model):
    """Averages rows itself, in metrics and in logs, as many examples do."""

    def __init__(self) -> None:
        super().__init__()
        self.dense = keras.layers.Dense(1)
        self.size = keras.metrics.Mean(name="size")
        self.count = keras.metrics.Mean(name="count")

    def call(self, x: Any) -> Any:
        return self.dense(x)

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        self.size.update_state(keras.ops.mean(keras.ops.abs(data[1])))
        self.count.update_state(1.0)
        extra = {"largest": keras.ops.mean(data[0]), "bias": self.dense.bias + 0.0}
        return logs | {"size": self.size.result(), "count": self.count.result()} | extra

    def compute_metrics(self, x: Any, y: Any, y_pred: Any, sample_weight: Any = None) -> Any:
        logs = super().compute_metrics(x, y, y_pred, sample_weight)
        return logs | {"error": keras.ops.mean(keras.ops.abs(y - y_pred))}


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_own_means_count_by_rows(num_replicas: int) -> None:
    def make() -> keras.Model:
        model = OwnMeans()
        model.compile(keras.optimizers.SGD(0.05), "mse")
        return model

    case = Case("own means", make, fit_arrays(vectors(), targets(), predict=False))
    difference = compare(execute(case, None), execute(case, mirrored(num_replicas)))
    assert difference.largest <= 1e-6, difference


def rows_of_predictions(output: Any) -> Any:
    return output.bounding_shape()[0] if isinstance(output, tf.RaggedTensor) else len(output)


@pytest.mark.parametrize("num_replicas", [2, 4])
@pytest.mark.parametrize("kind", ["strings", "ragged", "two rows for each"])
def test_predicts_no_more_rows_than_there_are(num_replicas: int, kind: str) -> None:
    def make() -> keras.Model:
        x = keras.Input((6,))
        if kind == "strings":
            numbers = keras.layers.Lambda(lambda t: tf.argmax(t, -1), output_shape=())(x)
            return keras.Model(x, keras.layers.StringLookup(vocabulary=list("abcde"), invert=True)(numbers))
        if kind == "ragged":

            class Ragged(keras.Model):
                def call(self, x: Any) -> Any:
                    return tf.RaggedTensor.from_tensor(x)

            return Ragged()
        return keras.Model(x, keras.layers.Lambda(lambda t: tf.reshape(t, (-1, 3)), output_shape=(3,))(x))

    with mirrored(num_replicas).scope():
        model = make()
    plain = make()
    for size in (1, 5):
        expected = plain.predict(X[:size], batch_size=2, verbose=0)
        received = model.predict(X[:size], batch_size=2, verbose=0)
        assert rows_of_predictions(received) == rows_of_predictions(expected)
        on_batch = model.predict_on_batch(X[:size])
        assert rows_of_predictions(on_batch) == rows_of_predictions(plain.predict_on_batch(X[:size]))


def test_a_loop_in_a_callback_is_the_users_own() -> None:
    strategy = mirrored(2)
    with strategy.scope():
        model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.0), "mse")
        loss_of = keras.losses.MeanSquaredError()
    (batch,) = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensors((X[:7], Y[:7])))
    plain = tf.ones(6)
    seen: list[tuple[float, list[int]]] = []

    def look() -> tuple[float, list[int]]:
        loss = strategy.run(lambda x, y: loss_of(y, model(x)), args=batch)
        sizes = strategy.run(tf.size, args=(plain,))
        return float(strategy.reduce("SUM", loss, axis=None)), [
            int(v) for v in strategy.experimental_local_results(sizes)
        ]

    callback = keras.callbacks.LambdaCallback(on_epoch_end=lambda epoch, logs: seen.append(look()))
    model.fit(X, Y, verbose=0, callbacks=[callback])
    assert seen == [look()]
    assert seen[0][1] == [6, 6]


def test_sums_of_shape_one_survive_a_replica_without_rows() -> None:
    """A static first dimension of 1 is not taken for a single row if the batch size is not static."""
    strategy = mirrored(4)

    @tf.function
    def total(dataset: Any) -> tf.Tensor:
        result = tf.zeros((1,))
        for x in dataset:
            result += strategy.reduce("SUM", strategy.run(lambda v: tf.reduce_sum(v)[None], args=(x,)), axis=None)
        return result

    dataset = tf.data.Dataset.from_tensor_slices(X[:13]).batch(11)
    received = total(strategy.experimental_distribute_dataset(dataset))
    np.testing.assert_allclose(received, [X[:13].sum()], rtol=1e-5)


def test_optimizers_of_the_models_own_made_outside_are_refused() -> None:
    class Adversarial(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x)

        def compile(self, own: Any) -> None:
            super().compile()
            self.own = own

    with mirrored(2).scope():
        model = Adversarial()
    model.compile(keras.optimizers.Adam(name="discriminating"))
    with pytest.raises(ValueError, match="optimizer 'discriminating' was not made under"):
        model.fit(X, Y, verbose=0)


@pytest.mark.parametrize("num_replicas", [2, 4])
def test_draws_without_a_seed_of_its_own(num_replicas: int) -> None:
    """Keras' generator for draws without a seed belongs to a thread, and every replica has a thread of its own."""

    class Noisy(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.dense = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.dense(x + keras.random.normal(keras.ops.shape(x)))

    weights = []
    for _ in range(2):
        keras.backend.clear_session(free_memory=False)
        keras.utils.set_random_seed(5)
        with mirrored(num_replicas).scope():
            model = Noisy()
            model.compile("sgd", "mse")
        model.fit(X, Y, batch_size=8, epochs=2, verbose=0, shuffle=False)
        weights.append(model.get_weights()[0])
    np.testing.assert_array_equal(weights[0], weights[1])


class WithoutCall(keras.Model):
    """Two networks with an optimizer each, as adversarial networks have; the model has no `call`."""

    def __init__(self, inputs: Sequence[keras.KerasTensor]) -> None:
        super().__init__()
        self.first = keras.Sequential([*inputs, keras.layers.Dense(4, activation="tanh"), keras.layers.Dense(6)])
        self.second = keras.Sequential([*inputs, keras.layers.Dense(1)])
        self.squared = keras.losses.MeanSquaredError()
        self.error = keras.metrics.Mean(name="error")

    def compile(self) -> None:
        super().compile(keras.optimizers.SGD(0.05))
        self.own = keras.optimizers.SGD(0.1, momentum=0.5)

    def train_step(self, data: Any) -> Any:
        x, y = data[:2]
        with tf.GradientTape(persistent=True) as tape:
            error = self.squared(y, self.second(self.first(x)))
        for optimizer, part in ((self.own, self.first), (self.optimizer, self.second)):
            weights = part.trainable_weights
            optimizer.apply_gradients(zip(tape.gradient(error, weights), weights, strict=True))
        self.error.update_state(error)
        return {"error": self.error.result()}

    def test_step(self, data: Any) -> Any:
        self.error.update_state(self.squared(data[1], self.second(self.first(data[0]))))
        return {"error": self.error.result()}


class Siamese(WithoutCall):
    """A model whose ``call`` takes a tuple that Keras could take for inputs, targets and sample weights."""

    def call(self, inputs: Any) -> Any:
        anchor, positive, negative = inputs
        embedded = [self.first(part) for part in (anchor, positive, negative)]
        return tuple(self.second(embedded[0] - other) for other in embedded[1:])

    def train_step(self, data: Any) -> Any:
        with tf.GradientTape() as tape:
            near, far = self(data)
            error = self.squared(near, 0.5 * far)
        gradients = tape.gradient(error, self.trainable_weights)
        self.optimizer.apply_gradients(zip(gradients, self.trainable_weights, strict=True))
        self.error.update_state(error)
        return {"error": self.error.result()}

    def test_step(self, data: Any) -> Any:
        self.error.update_state(self.squared(*self(data)))
        return {"error": self.error.result()}


@pytest.mark.parametrize("is_built", [True, False])
@pytest.mark.parametrize("kind", [WithoutCall, Siamese])
def test_models_that_cannot_be_called_on_the_inputs_are_built_by_their_first_step(
    kind: type[WithoutCall], is_built: bool
) -> None:
    columns = (X, Y) if kind is WithoutCall else (X, X[::-1], X + Y)

    def make() -> keras.Model:
        model = kind([keras.Input((6,))] if is_built else [])
        model.compile()
        return model

    def run(model: keras.Model, strategy: tf.distribute.Strategy | None) -> Any:
        batches = [tuple(column[begin : begin + 7] for column in columns) for begin in (0, 7, 14, 21)]
        # Batches that are drawn ahead of training would be lost.
        history = model.fit((batch for batch in batches), shuffle=False, steps_per_epoch=2, epochs=2, verbose=0).history
        dataset = tf.data.Dataset.from_tensor_slices(columns).batch(7)
        evaluated = model.evaluate(dataset, verbose=0, return_dict=True)
        trained = [model.train_on_batch(*batches[0], return_dict=True), model.test_on_batch(*batches[0])]
        return dict(history) | {"test": evaluated["error"], "batch": trained[0]["error"]}

    case = Case("without call", make, run)
    with warnings.catch_warnings():
        warnings.simplefilter("error")
        difference = compare(execute(case, None), execute(case, mirrored(2)))
    assert difference.largest <= 1e-6, difference


def test_a_model_whose_call_fails_says_so_as_on_one_device() -> None:
    class Failing(keras.Model):
        def call(self, x: Any) -> Any:
            raise KeyError("rather this")

    for scope in (contextlib.nullcontext(), mirrored(2).scope()):
        with scope:
            model = Failing()
            model.compile("sgd", "mse")
        with pytest.raises(KeyError, match="rather this"):
            model.fit(X, Y, verbose=0)


class LooksAtValues(keras.layers.Layer):
    """Reads values, and so cannot be called on symbolic tensors."""

    def call(self, x: Any) -> Any:
        return x * float(np.abs(x.numpy()).max() >= 0)


class AssignsInACond(keras.layers.Layer):
    """Reads a variable after a tf.cond that assigns it; outside of steps Keras would read the branch's tensor."""

    def build(self, shape: Any) -> None:
        self.steps = self.add_weight(shape=(), initializer="zeros", trainable=False, name="steps")

    def call(self, x: Any) -> Any:
        def count() -> Any:
            self.steps.assign(self.steps + 1.0)
            return tf.constant(0.0)

        tf.cond(tf.reduce_sum(tf.abs(x)) >= 0, count, lambda: tf.constant(0.0))
        return x * self.steps


def absolute(y: Any, predicted: Any) -> Any:
    return tf.constant(np.abs(y.numpy() - predicted.numpy()).mean(-1))


def squared(y: Any, predicted: Any) -> Any:
    return tf.reduce_mean(tf.square(y.numpy() - predicted), -1)


@pytest.mark.filterwarnings("ignore:Gradients do not exist")
@pytest.mark.parametrize("eagerly", [True, False])
def test_what_cannot_be_built_ahead_trains_as_on_one_device(eagerly: bool) -> None:
    class Own(keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.first = keras.layers.Dense(3)
            self.between = LooksAtValues() if eagerly else AssignsInACond()
            self.last = keras.layers.Dense(1)

        def call(self, x: Any) -> Any:
            return self.last(self.between(self.first(x)))

    results = []
    for scope in (contextlib.nullcontext(), mirrored(2).scope()):
        keras.utils.set_random_seed(1)
        with scope:
            model = Own()
            metrics = [absolute] if eagerly else ["mae"]
            model.compile("sgd", squared if eagerly else "mse", metrics=metrics, run_eagerly=eagerly)
        history = model.fit(X, Y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        results.append([*history.values(), *model.get_weights(), model.predict(X, batch_size=8, verbose=0)])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)


@pytest.mark.filterwarnings("ignore:Your input ran out of data")
@pytest.mark.parametrize(
    ("name", "accumulation", "jit"),
    [("SGD", None, False), ("Adam", 2, False), ("Adam", None, False), ("Adam", None, True)],
)
def test_steps_are_counted_as_on_one_device(name: str, accumulation: int | None, jit: bool) -> None:
    """At the end of a dataset of unknown length, Keras up to 3.15 counts a step that has no batch, without XLA."""

    def counted(scope: Any) -> list[Any]:
        with scope:
            dropout = keras.layers.Dropout(0.5, seed=1)
            model = keras.Sequential([keras.Input((6,)), dropout, keras.layers.Dense(1)])
            optimizer = getattr(keras.optimizers, name)(0.1, gradient_accumulation_steps=accumulation)
            model.compile(optimizer, "mse", jit_compile=jit)
        batches = tf.data.Dataset.from_tensor_slices((X, Y)).batch(5).filter(lambda *_: True)
        model.fit(batches, epochs=2, verbose=0, shuffle=False)
        return [int(optimizer._iterations.numpy()), np.asarray(dropout.seed_generator.state).tolist()]

    ends = 2 * (not jit and not has_keras("3.16"))
    expected = [10 if accumulation else 10 + ends, [1, 10 + ends]]
    assert counted(contextlib.nullcontext()) == expected
    for strategy in (strategies.MirroredStrategy(["CPU:1"]), mirrored(2)):
        assert counted(strategy.scope()) == expected
