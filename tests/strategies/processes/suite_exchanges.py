"""The exchanges of a step, on two ranks: run by `test_suites` in two processes at once, never collected."""

from __future__ import annotations

import contextlib
from collections import Counter
from collections.abc import Callable, Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from tests.strategies.processes.ranks import all_ranks, digest, regression, strategy

_PolymorphicFunction: Any = tf.types.experimental.PolymorphicFunction


def functions_in(function: Any, depth: int = 5) -> Iterator[Any]:
    """Yields the TensorFlow functions that a Python function closes over."""
    if isinstance(function, _PolymorphicFunction):
        yield function
        return
    cells = [cell.cell_contents for cell in getattr(function, "__closure__", None) or ()]
    for value in cells if depth else ():
        for each in tf.nest.flatten(value) if isinstance(value, (list, tuple)) else [value]:
            yield from functions_in(each, depth - 1)


def exchanges(function: Any) -> int:
    """Returns the number of collectives in the graph of a function that Keras made and called."""
    found = []
    for traced in functions_in(function):
        for concrete in traced._list_all_concrete_functions():
            graph = concrete.graph.as_graph_def()
            bodies = [graph.node, *(body.node_def for body in graph.library.function)]
            ops = Counter(node.op for body in bodies for node in body)
            found.append(sum(n for op, n in ops.items() if op.startswith(("Collective", "Horovod"))))
    assert found
    return max(found)


def model(*layers: Any, optimizer: Any = "adam", metrics: Any = ("mae",), **kwargs: Any) -> keras.Model:
    made = keras.Sequential([keras.Input((4,)), *layers, keras.layers.Dense(1)])
    made.compile(optimizer, "mse", metrics=list(metrics), **kwargs)
    return made


def scaled() -> keras.Model:
    """Returns a model that runs two steps in a loop, with a loss scale; the last batch is smaller."""
    optimizer = keras.optimizers.LossScaleOptimizer(keras.optimizers.Adam(clipnorm=0.1))
    return model(optimizer=optimizer, steps_per_execution=2)


def of_own_metric() -> keras.Model:
    """Returns a model whose metric reads a weight; it must see the value after the step."""
    found: list[Any] = []

    def size_of_weights(y: Any, y_pred: Any) -> Any:
        return tf.reduce_sum(tf.abs(found[0].weights[0].value)) + 0 * tf.reduce_sum(y_pred, -1)

    found.append(model(metrics=["mae", size_of_weights]))
    return found[0]


class OwnStep(keras.Sequential):
    """Calls Keras' step, then reads a weight; it must see the value after the step."""

    def train_step(self, data: Any) -> Any:
        return super().train_step(data) | {"size": tf.reduce_sum(tf.abs(self.weights[0].value))}


def of_own_step() -> keras.Model:
    made = OwnStep([keras.Input((4,)), keras.layers.Dense(1)])
    made.compile("adam", "mse", metrics=["mae"])
    return made


def of_own_metrics_of_the_object() -> keras.Model:
    """Returns a model that reads a weight after the step, in a `compute_metrics` set on the object."""
    made = model()
    keras_own = made.compute_metrics

    def compute_metrics(*args: Any, **kwargs: Any) -> Any:
        size = tf.reduce_sum(tf.abs(made.weights[0].value))
        return keras_own(*args, **kwargs) | {"size": size}

    made.compute_metrics = compute_metrics
    return made


class InFunction(keras.layers.Layer):
    """Normalizes in a tf.function."""

    def __init__(self) -> None:
        super().__init__()
        self.normalization = keras.layers.BatchNormalization()
        self.normalized = tf.function(lambda x: self.normalization(x, training=True))

    def build(self, input_shape: Any) -> None:
        self.normalization.build(input_shape)

    def call(self, inputs: Any) -> Any:
        return self.normalized(inputs)


class CallsAgain(keras.Sequential):
    """Calls Keras' step, which traces the functions of its layers, and then calls the layers again."""

    def train_step(self, data: Any) -> Any:
        logs = super().train_step(data)
        self(data[0], training=True)
        return logs


def gathering() -> keras.Model:
    return model(keras.layers.Dense(2), optimizer=keras.optimizers.Adam(gradient_accumulation_steps=2))


def fitted(make: Callable[[], keras.Model], scope: Any) -> tuple[keras.Model, dict[str, list[float]]]:
    keras.utils.set_random_seed(3)
    with scope:
        made = make()
    x, y = regression()
    # 4 batches, the last of them smaller.
    return made, made.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False).history


@pytest.mark.parametrize(
    ("make", "expected"),
    [
        # Gradients, loss and metrics.
        (scaled, 1),
        # A second one for the other values that the step returns.
        (of_own_step, 2),
        # Gradients first, then metrics: the metric may read the updated weights.
        (of_own_metric, 2),
        # A third one for the other values that the step returns.
        (of_own_metrics_of_the_object, 3),
        # Accumulated gradients are not summed at every step, metrics are.
        (gathering, 2),
    ],
)
def test_of_a_training_step(make: Callable[[], keras.Model], expected: int) -> None:
    found, history = fitted(make, strategy().scope())
    alone, of_one_device = fitted(make, contextlib.nullcontext())
    assert all_ranks(exchanges(found.train_function)) == [expected] * 2
    assert all_ranks(digest(found)) == [digest(found)] * 2
    for one, other in zip(found.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    for name, values in of_one_device.items():
        np.testing.assert_allclose(history[name], values, rtol=1e-6, atol=1e-6)


def test_of_moving_statistics() -> None:
    """Statistics are fused with gradients and metrics; an evaluation step sends its metrics only."""
    found, _ = fitted(lambda: model(keras.layers.BatchNormalization()), strategy().scope())
    assert all_ranks(exchanges(found.train_function)) == [1, 1]
    assert all_ranks(digest(found)) == [digest(found)] * 2
    # The statistics follow the mean of all rows, whichever replica has them: 4 batches, twice.
    x, y = regression()
    mean = np.zeros(4)
    for _ in range(2):
        for batch in np.split(x, [8, 16, 24]):
            mean = 0.99 * mean + 0.01 * batch.mean(axis=0)
    np.testing.assert_allclose(found.layers[0].moving_mean, mean, rtol=0, atol=1e-6)
    found.evaluate(x, y, batch_size=8, verbose=0)
    assert all_ranks(exchanges(found.test_function)) == [1, 1]


def test_statistics_that_a_traced_function_writes_again_are_those_of_all_ranks() -> None:
    with strategy().scope():
        made = CallsAgain([keras.Input((4,)), InFunction(), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
    x, y = regression()
    made.fit(x, y, batch_size=8, verbose=0, shuffle=False)
    assert all_ranks(digest(made)) == [digest(made)] * 2


def test_of_normalization_over_all_replicas() -> None:
    """The sums of normalization are one message in each direction; the numbers are those of one device."""

    def make() -> keras.Model:
        # A bias before it would have no gradient.
        layers = [keras.layers.Dense(3, use_bias=False), keras.layers.BatchNormalization(synchronized=True)]
        return model(*layers, optimizer="sgd")

    found, history = fitted(make, strategy().scope())
    alone, of_one_device = fitted(make, contextlib.nullcontext())
    assert all_ranks(exchanges(found.train_function)) == [3, 3]
    for one, other in zip(found.get_weights(), alone.get_weights(), strict=True):
        np.testing.assert_allclose(one, other, rtol=0, atol=1e-6)
    np.testing.assert_allclose(history["loss"], of_one_device["loss"], rtol=1e-6, atol=1e-6)
