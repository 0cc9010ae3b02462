"""A copy is compiled with its model's arguments, even with unregistered functions and classes."""

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
    # A distributed optimizer has a subclass of its own, which tells everybody its class (`__class__`).
    assert other.optimizer.__class__ is one.optimizer.__class__
    assert isinstance(other.optimizer, type(one.optimizer))
    histories = [model.fit(X, Y, batch_size=4, epochs=2, shuffle=False, verbose=0).history for model in (one, other)]
    assert histories[0].keys() == histories[1].keys()
    for name, values in histories[0].items():
        np.testing.assert_allclose(histories[1][name], values, rtol=0, atol=TOLERANCE, err_msg=name)
    for before, after in zip(one.get_weights(), other.get_weights(), strict=True):
        np.testing.assert_allclose(after, before, rtol=0, atol=TOLERANCE)


class TwoRates(keras.Model):
    """A model with its own `compile`: other arguments, attributes, two optimizers, a loss that uses a layer."""

    def compile(self, rates: Any, weight: float, teacher: Any) -> None:
        super().compile(rates[0], loss=self.difference, metrics=["mae"])
        self.rates = {"body": rates[0], "head": rates[1]}
        # Hidden in a lambda, because Keras adds a layer that is an attribute to the model's layers.
        self.weight, self.hints = weight, [lambda x: teacher(x)]
        self.seen = keras.metrics.Mean(name="seen")

    def difference(self, y: Any, p: Any) -> Any:
        penalty = ops.sum(ops.square(ops.convert_to_tensor(self.get_layer("head").bias)))
        return ops.mean(ops.square(y - p), axis=-1) + self.weight * penalty

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            p = self(x, training=True)
            loss = self.compute_loss(x, y + 0 * self.hints[0](x), p)
        for name, optimizer in self.rates.items():
            own = [v for v in self.trainable_weights if ("head" in v.path) == (name == "head")]
            optimizer.apply(tape.gradient(loss, own), own)
        self.seen.update_state(loss)
        return self.compute_metrics(x, y, p) | {"seen": self.seen.result()}


def two_rates() -> tuple[Any, Any]:
    keras.utils.set_random_seed(1)
    teacher = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2)])
    inputs = keras.Input((6,))
    hidden = keras.layers.Dense(4, "relu", name="up")(inputs)
    model = TwoRates(inputs, keras.layers.Dense(2, name="head")(hidden))
    decayed = keras.optimizers.AdamW(0.1, weight_decay=0.5)
    decayed.exclude_from_weight_decay(var_list=[model.get_layer("up").kernel], var_names=["bias"])
    model.compile([decayed, keras.optimizers.SGD(0.1, momentum=0.5)], 0.5, teacher)
    return model, teacher


@pytest.mark.parametrize("before", [0, 1])
def test_a_compile_of_the_class_own(before: int) -> None:
    def trained(model: Any, epochs: int) -> Any:
        return model.fit(X, Y, batch_size=4, epochs=epochs, shuffle=False, verbose=0).history if epochs else {}

    (one, _), (plain, teacher) = two_rates(), two_rates()
    for each in (one, plain):
        trained(each, before)
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2}).scope():
        other = keras_ext.parallelize(plain)
    assert other.__class__ is TwoRates
    np.testing.assert_array_equal(other.hints[0](X), teacher(X))
    assert other.rates["body"] is other.optimizer is not plain.optimizer
    assert other.rates["head"] is not plain.rates["head"]
    assert other.rates["head"].built == plain.rates["head"].built
    after = [trained(each, 2) for each in (one, other)]
    for name, values in after[0].items():
        np.testing.assert_allclose(after[1][name], values, rtol=0, atol=TOLERANCE, err_msg=name)
    for mine, theirs in zip(other.get_weights(), one.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=TOLERANCE)


def test_a_loss_that_is_compiled_for_the_model_is_named() -> None:
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(2, name="head")])
    model.compile("sgd", tf.function(lambda y, p: ops.mean(ops.square(y - p)) + ops.sum(model.weights[1])))
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2})
    with strategy.scope(), pytest.warns(UserWarning, match="is not compiled.*Call compile of the copy"):
        copy = keras_ext.parallelize(model)
    assert not copy.compiled


class Doubled(keras.Sequential):
    def compile(self, rate: float) -> None:
        super().compile(keras.optimizers.SGD(rate), "mse")
        self.rate = rate

    def train_step(self, data: Any) -> Any:
        return super().train_step((data[0], 2 * data[1]))


def test_a_class_of_sequential_models() -> None:
    results = []
    for strategy in (None, strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2})):
        keras.utils.set_random_seed(1)
        model: Any = Doubled([keras.Input((6,)), keras.layers.Dense(4, name="up"), keras.layers.Dense(2)])
        model.compile(0.1)
        if strategy:
            with strategy.scope():
                model = keras_ext.parallelize(model)
        assert model.__class__ is Doubled
        assert model.rate == 0.1
        results.append(model.fit(X, Y, batch_size=4, shuffle=False, verbose=0).history["loss"])
    np.testing.assert_allclose(results[1], results[0], rtol=0, atol=TOLERANCE)
