"""The ops of a step wait for each other as TensorFlow alone orders them."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies._keras_hooks import control_dependencies
from strategies._tf_internals import auto_control_deps
from tests.strategies.gpu_graphs.programs import steps_of


class Writes(keras.layers.Layer):
    """Writes and reads a weight in turn, in a branch, a loop and a dataset's function, and looks into a table."""

    def build(self, shape: Any) -> None:
        self.sum = self.add_weight(shape=(), initializer="zeros", trainable=False, dtype="float32")
        keys = tf.lookup.KeyValueTensorInitializer(tf.constant([0, 1]), tf.constant([2.0, 3.0]))
        self.table = tf.lookup.StaticHashTable(keys, 1.0)

    def call(self, x: Any) -> Any:
        self.sum.assign(1.0)
        total = tf.convert_to_tensor(self.sum)
        self.sum.assign(tf.cond(total > 0.0, lambda: total + self.sum, lambda: total))
        total += tf.while_loop(lambda i: i < 3.0, lambda i: (i + self.sum,), (0.0,))[0]
        numbers = tf.data.Dataset.range(2).map(lambda i: tf.cast(i, tf.float32) + tf.convert_to_tensor(self.sum))
        total += numbers.reduce(0.0, lambda a, b: a + b)
        self.sum.assign(total)
        return x * self.sum + self.table.lookup(tf.constant([0, 5]))


def edges_of_step() -> dict[str, set[str]]:
    keras.backend.clear_session()
    with strategies.MirroredStrategy(["CPU:0"]).scope():
        model = keras.Sequential(
            [keras.Input((2,)), keras.layers.Dense(2), keras.layers.BatchNormalization(), Writes()]
        )
        model.compile("adam", "mse", jit_compile=False)
    model.fit(np.ones((4, 2)), np.ones((4, 2)), batch_size=4, verbose=0)
    step = steps_of(model.train_function)[0]
    return {op.name: {each.name for each in op.control_inputs} for op in step.graph.get_operations()}


def test_edges_are_those_of_tensorflow(monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []
    original = auto_control_deps.utils.get_read_write_resource_inputs

    def counted(op: Any) -> Any:
        asked.append(op)
        return original(op)

    monkeypatch.setattr(auto_control_deps.utils, "get_read_write_resource_inputs", counted)
    own = edges_of_step()
    num_asked = len(asked)
    monkeypatch.setattr(control_dependencies, "is_called_by_trainer", lambda: False)
    assert own == edges_of_step()
    assert any(own.values())
    assert num_asked < (len(asked) - num_asked) / 2
