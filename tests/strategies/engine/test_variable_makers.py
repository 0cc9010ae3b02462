"""The components of a variable: their names, also in graphs, where names have a meaning."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import tensorflow as tf

import strategies
from strategies.engine.variable_makers import _create_component

DEVICES = ["CPU:0", "CPU:1", "CPU:2"]


def test_components_have_the_names_that_tensorflow_gives_them() -> None:
    with tf.distribute.MirroredStrategy(DEVICES).scope():
        expected = [each.name for each in tf.Variable(1.0, name="rate").values]
    with strategies.MirroredStrategy(DEVICES).scope():
        found = tf.Variable(1.0, name="rate")
        kernel = keras.Variable(np.ones((2, 3)), name="kernel")
    assert [each.name for each in found.values] == expected == ["rate:0", "rate/replica_1:0", "rate/replica_2:0"]
    first, *others = kernel.value.values
    assert [each.name for each in others] == [first.name.replace(":", f"/replica_{r}:") for r in (1, 2)]
    kernel.assign(2 * np.ones((2, 3)))
    assert [each.numpy().sum() for each in kernel.value.values] == [12.0] * 3
    # Each has its own value.
    others[0].assign(np.zeros((2, 3)))
    assert [each.numpy().sum() for each in kernel.value.values] == [12.0, 0.0, 12.0]


def test_components_of_one_replica_are_created_under_one_name() -> None:
    created: list[str] = []

    def create(**kwargs: Any) -> tf.Variable:
        created.append(kwargs["name"])
        return tf.Variable(**kwargs)

    for name in ("kernel", "kernel/replica_1/", "adam/bias_momentum/replica_1/", "replica_1/", "kernel/replica_x/"):
        _create_component(create, name=name, initial_value=1.0)
    assert created == ["kernel", "replica_1/", "replica_1/", "replica_1/", "kernel/replica_x/"]
    created.clear()
    # In a graph, variables of one name would be one.
    with tf.Graph().as_default():
        for name in ("kernel/replica_1/", "bias/replica_1/"):
            _create_component(create, name=name, initial_value=1.0)
    assert created == ["kernel/replica_1/", "bias/replica_1/"]
