"""Reads of sharded weights by steps of several models, whose small weights share units, and their gradients."""

from __future__ import annotations

import contextlib
import gc
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.collectives.loopback import LOOPBACK
from tests.strategies.parity.harness import TOLERANCE


def test_a_traced_step_outlives_another_model_whose_weights_it_gathers() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], shard="weights")

    def made() -> Any:
        with strategy.scope():
            return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(1)])

    first, second = made(), made()
    rows = np.ones((4, 6), "float32")

    @tf.function
    def step(x: Any) -> Any:
        return strategy.run(second, (x,))

    before = strategy.experimental_local_results(step(rows))
    other = weakref.ref(first.weights[0].value)
    del first
    gc.collect()
    # A graph that calls the traced step looks at all variables that the step reads.
    after = strategy.experimental_local_results(tf.function(lambda x: step(x))(rows))
    np.testing.assert_array_equal(after, before)
    assert other() is not None


class Adversarial(keras.Model):
    """A generator and its critic, which has an optimizer of its own.

    Args:
        order: "persistent", one tape, with which the critic is updated again, after it was read; "two tapes", one for
            each loss. In both, the critic is updated before the generator's gradients are taken. "critic twice": each
            update has a forward pass of its own.
    """

    def __init__(self, order: str) -> None:
        super().__init__()
        self.order = order
        self.generator, self.critic = self._network(6), self._network(1)

    def _network(self, size: int) -> Any:
        start = keras.initializers.GlorotUniform(3)
        hidden = keras.layers.Dense(5, "tanh", kernel_initializer=start)
        return keras.Sequential([keras.Input((6,)), hidden, keras.layers.Dense(size, kernel_initializer=start)])

    def compile(self, *, run_eagerly: bool) -> None:
        super().compile(run_eagerly=run_eagerly)
        self.of_critic, self.of_generator = keras.optimizers.Adam(0.01), keras.optimizers.SGD(0.05)

    def losses_of(self, rows: Any) -> tuple[Any, Any]:
        real, fake = self.critic(rows), self.critic(self.generator(rows[:, ::-1]))
        return tf.reduce_mean(tf.nn.softplus(fake) + tf.nn.softplus(-real)), tf.reduce_mean(tf.nn.softplus(-fake))

    def train_step(self, data: Any) -> Any:
        generator, critic = self.generator.trainable_variables, self.critic.trainable_variables
        logs = {}
        if self.order == "critic twice":
            for _ in range(2):
                with tf.GradientTape() as tape:
                    loss, _ = self.losses_of(data)
                self.of_critic.apply_gradients(zip(tape.gradient(loss, critic), critic, strict=True))
            with tf.GradientTape() as tape:
                _, other = self.losses_of(data)
        else:
            with tf.GradientTape(persistent=True) as tape, tf.GradientTape() as second:
                loss, other = self.losses_of(data)
            self.of_critic.apply_gradients(zip(tape.gradient(loss, critic), critic, strict=True))
            if self.order == "persistent":
                logs["norm"] = tf.norm(critic[0])
                generator = [*generator, *critic]
            else:
                tape = second
        self.of_generator.apply_gradients(zip(tape.gradient(other, generator), generator, strict=True))
        return {"critic": loss, "generator": other, **logs}


@pytest.mark.parametrize("run_eagerly", [False, True])
@pytest.mark.parametrize("order", ["persistent", "two tapes", "critic twice"])
def test_gradients_are_taken_after_another_models_update(
    order: str, run_eagerly: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Weights of both models share a unit, or each has its own."""

    def trained(strategy: tf.distribute.Strategy | None) -> list[Any]:
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model = Adversarial(order)
            model.compile(run_eagerly=run_eagerly)
        rows = np.random.default_rng(0).normal(size=(11, 6)).astype("float32")
        history = model.fit(rows, batch_size=4, epochs=2, shuffle=False, verbose=0).history
        return [*model.get_weights(), *(history[name] for name in sorted(history))]

    wanted = trained(None)
    for bucket_bytes in (LOOPBACK.bucket_bytes, 1):
        monkeypatch.setattr(LOOPBACK, "bucket_bytes", bucket_bytes)
        found = trained(strategies.MirroredStrategy(["CPU:0", "CPU:1"], shard="weights"))
        for one, another in zip(wanted, found, strict=True):
            np.testing.assert_allclose(another, one, rtol=0, atol=TOLERANCE)
