"""Ops of a graph that compute the same are merged, and reads of a variable between its writes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.steps.common_ops import merge_common, versions_read
from tests.strategies.steps.test_first_replica import trace_each

BETWEEN: dict[str, tuple[Callable[[Any, Any], Any], bool]] = {
    "nothing": (lambda v, w: None, True),
    "a write of another variable": (lambda v, w: w.assign(2.0), True),
    "an op without state": (lambda v, w: tf.sqrt(2.0), True),
    "a write": (lambda v, w: v.assign_add(1.0), False),
    "a branch that writes": (lambda v, w: tf.cond(w > 0.0, lambda: v.assign(3.0), lambda: v.read_value()), False),
    "a loop that writes": (lambda v, w: tf.while_loop(lambda i: i < 2.0, lambda i: (v.assign_add(i),), (w,)), False),
    "a function that writes": (lambda v, w: tf.function(lambda: v.assign(5.0))(), False),
    "a call of Python": (lambda v, w: tf.py_function(lambda: v.assign(7.0), [], tf.float32), False),
    "a dataset that reads": (
        lambda v, w: tf.data.Dataset.range(2).map(lambda i: v + 1.0).reduce(0.0, lambda a, b: a + b),
        False,
    ),
    "a write of what an op returns": (
        lambda v, w: tf.raw_ops.AssignVariableOp(resource=tf.identity(v.handle), value=4.0),
        False,
    ),
}


@pytest.mark.parametrize("name", BETWEEN)
def test_reads_are_merged_if_nothing_may_write_between_them(name: str) -> None:
    v, w = tf.Variable(1.0), tf.Variable(1.0)
    between, are_merged = BETWEEN[name]
    nodes: dict[str, Any] = {}
    same: dict[str, str] = {}

    @tf.function
    def read() -> Any:
        first = tf.exp(v.read_value())
        between(v, w)
        second = tf.exp(v.read_value())
        # Here ops do not wait for each other yet.
        ops = tf.compat.v1.get_default_graph().get_operations()
        nodes.update((op.name, op.node_def) for op in ops)
        same.update(merge_common(nodes, versions=versions_read(ops)))
        return first + second

    read.get_concrete_function()
    assert sum(node.op == "Exp" for node in nodes.values()) == (1 if are_merged else 2)
    assert ("Exp_1" in same) == are_merged


class Writes(keras.layers.Layer):
    """Reads a weight before and after writes of it, which are alike on all replicas."""

    def build(self, shape: Any) -> None:
        self.total = self.add_weight(shape=(), initializer="ones", trainable=False, dtype="float32")

    def call(self, x: Any) -> Any:
        total = self.total
        x = x * tf.exp(total / 100.0) + tf.exp(total / 100.0)
        total.assign(total + 1.0)
        x = x * tf.exp(total / 100.0)
        total.assign(tf.cond(total > 0.0, lambda: total + 2.0, lambda: total + 0.0))
        return x * tf.exp(total / 100.0) - total


def trained(strategy: tf.distribute.Strategy) -> list[Any]:
    keras.utils.set_random_seed(3)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(2), Writes(), keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01), "mse", jit_compile=False)
    rows = np.random.default_rng(0).random((16, 2), "float32")
    history = model.fit(rows, rows[:, :1], batch_size=8, epochs=2, shuffle=False, verbose=0).history
    return [*history["loss"], *model.get_weights()]


def test_numbers_are_those_of_one_device(monkeypatch: pytest.MonkeyPatch) -> None:
    expected = trained(tf.distribute.get_strategy())
    two = ["CPU:0", "CPU:1"]
    once = trained(strategies.MirroredStrategy(two))
    trace_each(monkeypatch)
    each = trained(strategies.MirroredStrategy(two))
    for own, other, plain in zip(once, each, expected, strict=True):
        np.testing.assert_array_equal(own, other)
        np.testing.assert_allclose(own, plain, rtol=1e-6, atol=1e-6)
