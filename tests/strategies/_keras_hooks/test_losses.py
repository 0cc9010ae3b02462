"""Losses that cannot be computed from the losses of replicas, and other ways to ask for gradients.

Losses that can be are compared with one device in `parity/cases_losses.py`.
"""

from __future__ import annotations

import contextlib
import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import ops

import keras_ext
import strategies
from tests.strategies.parity.harness import features

X, Y = features(11, 6), features(11, 1, seed=1)


class Step(keras.Model):
    """A model whose step takes the gradient of the given loss."""

    def __init__(self, loss: Callable[[Any], Any], ask: Callable[..., Any] | None = None) -> None:
        super().__init__()
        self.head = keras.layers.Dense(2, activation="tanh")
        self.loss_of = loss
        self.ask = ask
        self.rows = keras.metrics.Mean(name="rows")

    def call(self, x: Any) -> Any:
        return self.head(x)

    def train_step(self, data: Any) -> Any:
        x, _ = data
        with tf.GradientTape() as tape:
            loss = self.loss_of(self(x))
        weights = self.trainable_variables
        gradients = tape.gradient(loss, weights) if self.ask is None else self.ask(loss, [v.value for v in weights])
        self.optimizer.apply_gradients(zip(gradients, weights, strict=True))
        self.rows.update_state(tf.shape(x)[0])
        return {"loss": loss, "rows": self.rows.result()}


def trained(model: Callable[[], Any], strategy: tf.distribute.Strategy | None, **compiled: Any) -> list[Any]:
    keras.utils.set_random_seed(3)
    with strategy.scope() if strategy is not None else contextlib.nullcontext():
        made = model()
        made.compile(keras.optimizers.SGD(0.1), **compiled)
    logs = made.fit(X, Y, batch_size=7, verbose=0, shuffle=False).history
    return [*made.get_weights(), *(np.asarray(logs[name]) for name in sorted(logs))]


def mirrored() -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy(["CPU:0", "CPU:1"])


@pytest.mark.parametrize("ask", [None, lambda y, x: tf.gradients(y, x)], ids=["tape", "tf.gradients"])
def test_means_and_sums_whoever_asks(ask: Callable[..., Any] | None) -> None:
    for loss in (lambda y: ops.mean(ops.square(y)), lambda y: 0.1 * ops.sum(ops.square(y))):
        plain, ours = (trained(functools.partial(Step, loss, ask), each) for each in (None, mirrored()))
        for wanted, got in zip(plain, ours, strict=True):
            np.testing.assert_allclose(wanted, got, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("eagerly", [False, True])
def test_what_the_program_sums_over_replicas_itself(eagerly: bool) -> None:
    def root(y: Any) -> Any:
        context = tf.distribute.get_replica_context()
        count = tf.cast(tf.shape(y)[0], tf.float32)
        return ops.sqrt(context.all_reduce("SUM", ops.sum(ops.square(y))) / context.all_reduce("SUM", count))

    plain, ours = (trained(lambda: Step(root), each, run_eagerly=eagerly) for each in (None, mirrored()))
    for wanted, got in zip(plain, ours, strict=True):
        np.testing.assert_allclose(wanted, got, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("eagerly", [False, True])
def test_what_is_neither_is_warned_of_once_with_its_line(eagerly: bool) -> None:
    faults = {
        "neither a mean nor a sum": lambda y: ops.sqrt(ops.mean(ops.square(y))),
        "a sum over rows plus a term that is none": lambda y: ops.sum(y) + ops.mean(ops.square(y)),
    }
    for fault, loss in faults.items():
        with warnings.catch_warnings(record=True) as caught:
            warnings.simplefilter("default")
            trained(functools.partial(Step, loss), mirrored(), run_eagerly=eagerly)
        (warning,) = [each for each in caught if each.category is strategies.DifferenceWarning]
        assert fault in str(warning.message)
        assert warning.filename == __file__
        # Python has by then recorded warnings for the lines of other models in this file.
        Step.train_step.__globals__.pop("__warningregistry__", None)


class Balance(keras.layers.Layer):
    """Adds the load-balancing loss of a mixture of experts: shares of tokens times mean probabilities."""

    def build(self, shape: Any) -> None:
        self.router = self.add_weight(shape=(shape[-1], 4), initializer="glorot_uniform")

    def call(self, x: Any) -> Any:
        probabilities = ops.softmax(x @ self.router)
        chosen = ops.one_hot(ops.argmax(probabilities, axis=-1), 4)
        self.add_loss(4 * ops.sum(ops.mean(chosen, axis=0) * ops.mean(probabilities, axis=0)))
        return ops.matmul(probabilities, ops.transpose(self.router))


@pytest.mark.parametrize("staged", [False, True], ids=["replicas", "micro-batches"])
def test_a_balance_of_experts_is_warned_of(staged: bool) -> None:
    def model() -> Any:
        plain = keras.Sequential([keras.Input((6,)), Balance(), keras.layers.Dense(1)])
        return keras_ext.PipelineModel(plain, 2, num_microbatches=2, partition="uniform") if staged else plain

    strategy = strategies.MirroredStrategy(["CPU:0"]) if staged else mirrored()
    with pytest.warns(UserWarning, match="A loss that a layer.* adds is neither a mean nor a sum over rows"):
        trained(model, strategy, loss="mse")


def test_nothing_is_warned_of_on_one_device() -> None:
    trained(lambda: Step(lambda y: ops.sqrt(ops.mean(ops.square(y)))), strategies.MirroredStrategy(["CPU:0"]))
