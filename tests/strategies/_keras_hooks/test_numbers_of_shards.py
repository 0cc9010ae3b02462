"""Programs that look at single variables of a split model: equal to one device, or a warning where each is used."""

from __future__ import annotations

import math
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from tests.strategies.parity.harness import TOLERANCE, features, targets

X, Y = features(16, 6), targets()[:16]
RUNS = pytest.mark.parametrize(
    ("mesh", "eagerly"), [({"tensor": 2}, False), ({"tensor": 2}, True), ({"data": 2, "tensor": 2}, False)], ids=str
)


class Watched(keras.Model):
    """A model whose step a function makes: it takes the model, gradients of the loss and of the mean output."""

    step: Callable[..., tuple[dict[str, Any], list[Any]]]

    def build(self, shape: Any) -> None:
        self.seen = self.add_weight(shape=(), initializer="zeros", trainable=False, name="seen")
        self.tracker = keras.metrics.Mean(name="tracked")

    def train_step(self, data: Any) -> Any:
        x, y = data
        with tf.GradientTape(persistent=True) as tape:
            predicted = self(x, training=True)
            loss = self.compute_loss(x, y, predicted)
            mean = tf.reduce_mean(predicted)
        variables = self.trainable_variables
        logs, gradients = type(self).step(self, tape.gradient(loss, variables), tape.gradient(mean, variables))
        self.optimizer.apply(gradients, variables)
        return {"loss": loss, **logs}


def right(model: Any, gradients: list[Any], others: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Looks at all elements of all variables, however they are split."""
    variables, kernel = model.trainable_variables, model.get_layer("up").kernel
    with tf.GradientTape() as tape:
        of_constant = tf.reduce_sum(tf.square(model(tf.ones((2, 6)))))
    slopes = tape.gradient(of_constant, {"kernel": kernel, "first": variables[0], "unused": model.seen})
    dot = tf.add_n([tf.reduce_sum(one * other) for one, other in zip(gradients, others, strict=True)])
    square = sum(tf.reduce_sum(each * each) for each in others)
    flat = tf.concat([tf.reshape(tf.abs(each), [-1]) for each in gradients], 0)
    threshold = tf.math.top_k(flat, 9).values[-1]
    model.seen.assign(0.5 * model.seen + tf.linalg.global_norm(gradients))
    model.tracker.update_state(tf.reduce_max([tf.reduce_max(tf.abs(each)) for each in variables]))
    logs = {
        "weights": tf.add_n([tf.nn.l2_loss(each) for each in variables]),
        "deviation": tf.math.reduce_std(flat),
        "kernel": tf.norm(kernel),
        "of_constant": of_constant,
        "slope": tf.norm(slopes["kernel"]),
        "finite": tf.cast(tf.reduce_all([tf.reduce_all(tf.math.is_finite(each)) for each in gradients]), tf.float32),
        "tracked": model.tracker.result(),
    }
    assert slopes["first"] is not None
    assert slopes["unused"] is None
    projected = [each - other * dot / square for each, other in zip(gradients, others, strict=True)]
    return logs, [tf.where(tf.abs(each) >= threshold, each, 0.5 * each) for each in projected]


def wrong(model: Any, gradients: list[Any], others: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Looks at each variable."""
    variables = model.trainable_variables
    model.seen.assign(tf.norm(gradients[0]))
    model.tracker.update_state(tf.norm(gradients[2]) + tf.norm(others[2]))
    logs = {"norms": tf.add_n([tf.norm(each) for each in variables])}
    with tf.GradientTape() as tape:
        decay = tf.add_n([tf.norm(each) for each in variables])
    decays = tape.gradient(decay, variables)
    scaled = [g / (tf.norm(g) + 0.1) for g in gradients]
    return logs, [g + 0.01 * d for g, d in zip(scaled, decays, strict=True)]


def of_own_experts(model: Any, gradients: list[Any], others: list[Any]) -> tuple[dict[str, Any], list[Any]]:
    """Sums and centralizes the gradients of experts; each replica owns some of the experts."""
    model.seen.assign(tf.add_n([tf.reduce_sum(each * each) for each in gradients]))
    return {}, [g - tf.reduce_mean(g, axis=0, keepdims=True) for g in gradients]


def on(mesh: dict[str, int]) -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(math.prod(mesh.values()))], mesh=mesh)


def fitted(
    step: Callable[..., Any], strategy: tf.distribute.Strategy, *, is_split: bool, eagerly: bool = False
) -> tuple[Any, Any, list[str]]:
    """Returns the model after two steps, its history, and the messages of its warnings."""
    keras.utils.set_random_seed(1)
    with warnings.catch_warnings(record=True) as caught, strategy.scope():
        warnings.simplefilter("always")
        inputs = keras.Input((6,))
        hidden = keras.layers.Dense(8, "tanh", name="up")(inputs)
        if step is of_own_experts:
            hidden = keras_ext.MixtureOfExperts(4, 8, capacity_factor=None)(hidden)
        own = type("Own", (Watched,), {"step": staticmethod(step)})
        model = own(inputs, keras.layers.Dense(1, name="down")(hidden))
        if is_split:
            model = keras_ext.parallelize(model)
        model.compile(keras.optimizers.SGD(0.1), "mse", run_eagerly=eagerly)
        history = model.fit(X, Y, batch_size=8, shuffle=False, verbose=0).history
    return model, history, [str(each.message) for each in caught if each.category is strategies.DifferenceWarning]


@pytest.fixture(scope="module")
def plain() -> tuple[Any, Any]:
    """The right program's model and history on one device."""
    return fitted(right, tf.distribute.get_strategy(), is_split=False)[:2]


@RUNS
def test_numbers_of_all_shards_are_those_of_one_device(
    mesh: dict[str, int], eagerly: bool, plain: tuple[Any, Any]
) -> None:
    model, history, messages = fitted(right, on(mesh), is_split=True, eagerly=eagerly)
    assert not messages
    for name, values in plain[1].items():
        np.testing.assert_allclose(history[name], values, rtol=TOLERANCE, atol=TOLERANCE, err_msg=name)
    for own, whole in zip(model.get_weights(), plain[0].get_weights(), strict=True):
        np.testing.assert_allclose(own, whole, atol=TOLERANCE)


def uses(messages: list[str]) -> set[str]:
    """Returns how warnings begin that are about numbers of shards."""
    return {each.partition(" is computed from single shards")[0].rpartition("/")[2] for each in messages}


@RUNS
def test_each_use_of_a_number_of_one_shard_is_reported(mesh: dict[str, int], eagerly: bool) -> None:
    assert uses(fitted(wrong, on(mesh), is_split=True, eagerly=eagerly)[2]) == {
        "seen' is set to",
        "A number that the tracker 'tracked' is given for a batch",
        "What a step returns",
        "The loss of which a gradient is taken here",
        "A gradient that is applied here",
    }


def test_numbers_of_a_replicas_own_experts_are_reported() -> None:
    messages = fitted(of_own_experts, on({"data": 1, "expert": 2}), is_split=False)[2]
    assert uses(messages) == {"seen' is set to", "A gradient that is applied here"}
