"""The error names the part that was made outside of the scope; whole models and optimizers: `test_mirrored`.

A custom step that writes variables of one device causes a warning; variables of the scope do not.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies

X, Y = np.ones((8, 3), "float32"), np.ones((8, 1), "float32")
WRITES: dict[str, Callable[[tf.Variable], Any]] = {
    "assign_add": lambda v: v.assign_add(tf.ones([4])),
    "without a value": lambda v: v.assign_add(tf.ones([4]), read_value=False),
    "scatter": lambda v: v.scatter_nd_update([[1]], [2.0]),
    "conditional": lambda v: tf.cond(tf.reduce_sum(v) < 9.0, lambda: v.assign_sub(tf.ones([4])), v.read_value),
}


class Distiller(keras.Model):
    """A model that its first step builds: until then its only variables are the teacher's."""

    def __init__(self, teacher: Any) -> None:
        super().__init__(name="distiller")
        self.student = keras.layers.Dense(2)
        self.teacher = teacher

    def call(self, x: Any) -> Any:
        return self.student(x) - self.teacher(x)


class Writing(keras.Model):
    """Writes variables in its step that it does not track."""

    def __init__(self, variables: list[tf.Variable]) -> None:
        super().__init__()
        self.head = keras.layers.Dense(1)
        self.written: Callable[[], list[tf.Variable]] = lambda: variables

    def call(self, x: Any) -> Any:
        return self.head(x)

    def train_step(self, data: Any) -> Any:
        for variable in self.written():
            for write in WRITES.values():
                write(variable)
        return super().train_step(data)


@pytest.mark.parametrize("built", [False, True])
def test_a_frozen_teacher(built: bool) -> None:
    teacher = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)], name="teacher")
    teacher.trainable = False
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = Distiller(teacher)
        if built:
            model.student.build((None, 3))
        with pytest.raises(ValueError, match=r"model 'teacher' in the model 'distiller' was not made .*teacher/dense"):
            model.compile("sgd", "mse")


@pytest.mark.filterwarnings("ignore:Layer InputLayer does not have")
@pytest.mark.parametrize(("way", "use_bias"), [("quantize", True), ("quantize", False), ("enable_lora", True)])
def test_ways_that_replace_or_add_variables(way: str, use_bias: bool) -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.Dense(4, use_bias=use_bias, name="up"), keras.layers.Dense(2)]
        )
    if way == "quantize":
        model.quantize("int8")
    else:
        model.layers[0].enable_lora(2)
    with pytest.raises(
        ValueError, match=f"layer 'up' in the model .* was given variables outside .*Call `{way}` inside"
    ):
        model.predict(X, verbose=0)


@pytest.mark.parametrize("run_eagerly", [False, True])
def test_they_are_warned_of_where_they_are_written(run_eagerly: bool) -> None:
    outside = tf.Variable(tf.zeros([4]), name="outside")
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        inside = tf.Variable(tf.zeros([4]), name="inside", aggregation=tf.VariableAggregation.MEAN)
        model = Writing([outside, inside])
        model.compile("sgd", "mse", run_eagerly=run_eagerly)
    with pytest.warns(strategies.DifferenceWarning) as all_caught:
        model.fit(X, Y, batch_size=4, verbose=0)
    caught = [each for each in all_caught if each.category is strategies.DifferenceWarning]
    assert all("'outside' was made outside of the strategy's scope" in str(each.message) for each in caught)
    assert all(each.filename == __file__ for each in caught)
    assert len({each.lineno for each in caught}) == len(WRITES)
