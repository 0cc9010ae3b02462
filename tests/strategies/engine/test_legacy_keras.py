"""Keras 2 is refused wherever a strategy receives its objects. A fake module of its name replaces it."""

from __future__ import annotations

import sys
import types
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies

SOURCE = """
import tensorflow as tf

class Dense:
    name = "dense"

    def __init__(self):
        self.kernel = tf.Variable(tf.ones([3, 1]))

    def __call__(self, x):
        return x @ self.kernel

class SGD:
    def __init__(self):
        self.slots = []

    def apply_gradients(self, pairs):
        for gradient, variable in pairs:
            self.slots.append(tf.Variable(tf.zeros_like(gradient)))

class Model:
    def fit(self, strategy, x):
        return strategy.run(lambda x: x, (x,))

class MeanSquaredError:
    def __call__(self, y, predicted):
        return tf.reduce_mean(tf.square(y - predicted))
"""


@pytest.fixture
def tf_keras(monkeypatch: pytest.MonkeyPatch) -> Any:
    module = types.ModuleType("tf_keras.src")
    exec(SOURCE, vars(module))
    monkeypatch.setitem(sys.modules, "tf_keras", module)
    return module


@pytest.fixture(scope="module")
def strategy() -> Any:
    return strategies.MirroredStrategy(["CPU:0", "CPU:1"])


def refused(received: str) -> Any:
    return pytest.raises(ValueError, match=rf"Keras 3: `import keras`.*TF_USE_LEGACY_KERAS.*Received: {received}")


def test_variables_in_the_scope(tf_keras: Any, strategy: Any) -> None:
    tf_keras.Dense()
    with strategy.scope(), refused(r"tf_keras\.src\.Dense 'dense', under MirroredStrategy"):
        tf_keras.Dense()


def test_its_own_fit(tf_keras: Any, strategy: Any) -> None:
    with refused(r"tf_keras\.src\.Model"):
        tf_keras.Model().fit(strategy, tf.ones([2, 3]))


@pytest.mark.parametrize("wrap", [lambda step: step, tf.function])
def test_loops(tf_keras: Any, strategy: Any, wrap: Callable[..., Any]) -> None:
    dense, optimizer = tf_keras.Dense(), tf_keras.SGD()

    def model(x: tf.Tensor) -> tf.Tensor:
        return dense(x)

    with refused(r"tf_keras\.src\.Dense"):
        strategy.run(wrap(lambda x: model(x)), (tf.ones([2, 3]),))
    with refused(r"tf_keras\.src\.SGD"):
        strategy.run(wrap(lambda x: optimizer.apply_gradients([(x, x)])), (tf.ones([2, 3]),))
    # No argument names the optimizer: it is found when it creates its slots.
    with pytest.raises(ValueError, match=r"Received: tf_keras\.src\.SGD"):
        strategy.run(wrap(lambda x: vars(tf_keras)["SGD"]().apply_gradients([(x, x)])), (tf.ones([2, 3]),))


def test_compile(tf_keras: Any, strategy: Any) -> None:
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    for arguments in ({"optimizer": tf_keras.SGD()}, {"loss": tf_keras.MeanSquaredError()}):
        with refused(rf"tf_keras\.src\.{type(next(iter(arguments.values()))).__name__}"):
            model.compile(**arguments)


def test_keras_3_beside_it(tf_keras: Any, strategy: Any) -> None:
    """A program may have imported both."""
    with strategy.scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
    x = np.ones((4, 3), "float32")
    assert tf_keras.Dense()(x).shape == (4, 1)
    model.fit(x, x[:, :1], verbose=0)
    total = strategy.run(tf.function(lambda x: tf.reduce_sum(model(x))), (x,))
    assert len(strategy.experimental_local_results(total)) == 2
