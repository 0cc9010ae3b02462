"""Loops without `strategy.run`: correct outside of the scope in one process, else an error names `strategy.run`."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies

X = np.random.default_rng(0).normal(size=(8, 4)).astype("float32")
Y = X[:, :1].copy()


def made(scope: Any) -> tuple[Any, Any]:
    keras.utils.set_random_seed(1)
    with scope:
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
        return model, keras.optimizers.Adam(0.1, clipnorm=0.5)


def step(model: Any, optimizer: Any, x: Any = X, y: Any = Y) -> Any:
    with tf.GradientTape() as tape:
        loss = tf.reduce_mean(tf.square(model(x, training=True) - y))
    optimizer.apply_gradients(
        zip(tape.gradient(loss, model.trainable_variables), model.trainable_variables, strict=True)
    )
    return loss


def test_outside_of_the_scope_it_is_a_program_for_one_device() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    results = []
    for scope in (contextlib.nullcontext(), strategy.scope()):
        model, optimizer = made(scope)
        losses = [step(model, optimizer) for _ in range(3)]
        results.append([*losses, *model.get_weights()])
    for ours, theirs in zip(*results, strict=True):
        np.testing.assert_allclose(ours, theirs, rtol=1e-6, atol=1e-6)
    for variable in (*model.variables, *optimizer.variables):
        first, second = variable.value.values
        np.testing.assert_array_equal(first, second)


def test_inside_of_the_scope_errors_name_strategy_run() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    model, optimizer = made(strategy.scope())
    with (
        strategy.scope(),
        pytest.raises(ValueError, match=r"outside of strategy.run, where no replica runs.*strategy\.run\(step, args"),
    ):
        step(model, optimizer)
    batches = strategy.experimental_distribute_dataset(tf.data.Dataset.from_tensor_slices((X, Y)).batch(8))
    for x, y in batches:
        with pytest.raises(ValueError, match=r"called on the batch of all replicas.*strategy\.run\(step, args"):
            step(model, optimizer, x, y)
