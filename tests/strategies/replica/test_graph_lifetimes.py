"""Graphs of deleted models are freed; graphs that are still needed keep their gradients."""

from __future__ import annotations

import gc
import logging
import weakref
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies._tf_internals import gradient_registry
from strategies.replica.graph_lifetimes import host_callback, traced
from tests.strategies.parity.harness import features


@pytest.fixture(params=[1, 2])
def strategy(request: pytest.FixtureRequest) -> strategies.MirroredStrategy:
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(request.param)])


class Scaled(keras.layers.Layer):
    """A layer whose gradient is three times the true one."""

    def call(self, x: Any) -> Any:
        return threefold(x)


@tf.custom_gradient
def threefold(x: tf.Tensor) -> Any:
    return tf.identity(x), lambda upstream: 3 * upstream


def classifier() -> keras.Model:
    model = keras.Sequential([keras.Input((4,)), Scaled(), keras.layers.Dense(3, activation="softmax")])
    model.compile("adam", "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def spread(kind: str) -> Any:
    """Returns (strategy, function that makes a model in its scope) of one kind of split."""
    devices = ["CPU:0", "CPU:1"]
    if kind == "tensor":
        strategy = strategies.MirroredStrategy(devices, mesh={"tensor": 2})
        return strategy, lambda: keras_ext.parallelize(mlp())
    if kind == "tensor, recomputed":
        strategy = strategies.MirroredStrategy(devices, mesh={"tensor": 2})
        return strategy, lambda: keras_ext.rematerialize(keras_ext.parallelize(mlp()), ["dense_hidden"])
    if kind == "pipe":
        strategy = strategies.MirroredStrategy(devices, mesh={"pipe": 2})
        return strategy, lambda: keras_ext.PipelineModel(mlp(), num_microbatches=2)
    if kind == "expert":
        strategy = strategies.MirroredStrategy(devices, mesh={"expert": 2})
        return strategy, lambda: keras.Sequential(
            [keras.Input((4,)), keras_ext.MixtureOfExperts(2, 8), keras.layers.Dense(1)]
        )
    return strategies.MirroredStrategy(devices, shard="weights" if kind == "weights" else "optimizer"), mlp


def mlp() -> keras.Model:
    hidden = keras.layers.Dense(8, "relu", name="dense_hidden")
    # Both operands of the sum get the same tensor as their gradient.
    x = keras.Input((4,))
    y = keras.layers.Dense(8)(hidden(x))
    return keras.Model(x, keras.layers.Dense(1)(keras.layers.add([y, keras.layers.Dense(8)(x)])))


def graphs() -> set[int]:
    # Twice: some graphs are released by finalizers of what the first collection finds.
    gc.collect()
    gc.collect()
    return {id(each) for each in gc.get_objects() if isinstance(each, tf.Graph)}


def test_models_that_were_trained_and_dropped_leave_no_graph(strategy: strategies.MirroredStrategy) -> None:
    x, y = features(8, 4), np.arange(8) % 3

    def train() -> None:
        with strategy.scope():
            model = classifier()
        model.fit(x, y, batch_size=4, verbose=0, validation_data=(x, y))
        model.predict(x, verbose=0)

    # The first run includes the graphs that the strategy itself traces once.
    train()
    before, names = graphs(), len(gradient_registry.list())
    for _ in range(2):
        train()
    assert len(graphs()) <= len(before)
    assert len(gradient_registry.list()) <= names


@pytest.mark.parametrize(
    "kind",
    [
        pytest.param("tensor", marks=pytest.mark.parity_all),
        "tensor, recomputed",
        "pipe",
        "expert",
        "optimizer",
        "weights",
    ],
)
def test_models_split_in_any_way_leave_no_graph(kind: str) -> None:
    strategy, make = spread(kind)
    x, y = features(8, 4), features(8, 1)

    def train() -> None:
        with strategy.scope():
            model = make()
            model.compile("adam", "mse", jit_compile=False)
        model.fit(x, y, batch_size=4, verbose=0)
        model.evaluate(x, y, verbose=0)
        model.predict(x, verbose=0)

    train()
    before = graphs()
    train()
    assert len(graphs()) <= len(before)


def test_gradients_of_functions_traced_before(strategy: strategies.MirroredStrategy) -> None:
    @tf.function
    def inner(x: tf.Tensor) -> tf.Tensor:
        # TensorFlow rebuilds the body of a loop from its definition, where its gradient is computed.
        return tf.while_loop(lambda i, _: i < 2, lambda i, v: (i + 1, threefold(v * v)), (0, threefold(x)))[1]

    @tf.function
    def value(x: tf.Tensor) -> tf.Tensor:
        return strategy.run(lambda: inner(x))

    @tf.function
    def slope(x: tf.Tensor) -> Any:
        def step() -> Any:
            with tf.GradientTape() as tape:
                tape.watch(x)
                result = inner(x)
            return tape.gradient(result, x)

        return strategy.run(step)

    value(tf.constant(2.0))
    gc.collect()
    for received in strategy.experimental_local_results(slope(tf.constant(2.0))):
        # x ** 4, and each custom gradient multiplies the slope by three.
        assert float(received) == 27 * 4 * 2.0**3


def test_graphs_of_others_are_left_alone(strategy: strategies.MirroredStrategy) -> None:
    before = set(gradient_registry.list())
    function = tf.function(lambda x: threefold(x))
    function(tf.constant(1.0))
    del function
    gc.collect()
    assert len(set(gradient_registry.list()) - before) == 1


def test_functions_that_a_graph_calls_go_with_it(strategy: strategies.MirroredStrategy) -> None:
    called = []

    def host(after: tf.Tensor) -> Any:
        def note() -> None:
            called.append(1)

        return weakref.ref(note), host_callback(note, [after])

    noted: list[Any] = []

    @tf.function
    def step(x: tf.Tensor) -> tf.Tensor:
        def inside() -> tf.Tensor:
            held, zero = host(x)
            noted.append(held)
            return x + zero

        with strategy.scope():
            return strategy.run(inside)

    step(tf.constant(1.0))
    gc.collect()
    step(tf.constant(2.0))
    assert len(called) == 2 * strategy.num_replicas_in_sync
    del step
    gc.collect()
    assert all(held() is None for held in noted)


def test_closures_of_one_code_are_not_taken_for_retracing(caplog: pytest.LogCaptureFixture) -> None:
    logger = logging.getLogger("tensorflow")
    logger.addHandler(caplog.handler)
    try:
        for i in range(12):
            function = traced(lambda x, i=i: i * x)
            assert float(function(tf.ones([]))) == float(function(tf.ones([]))) == i
        assert "retracing" not in caplog.text
        # One function that is traced for many shapes is still reported.
        for n in range(12):
            function(tf.ones([n]))
        assert "retracing" in caplog.text
    finally:
        logger.removeHandler(caplog.handler)
