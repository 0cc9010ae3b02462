"""The error names the part that was made outside of the scope; whole models and optimizers: `test_mirrored`."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import strategies

X = np.ones((4, 3), "float32")


class Distiller(keras.Model):
    """A model that its first step builds: until then its only variables are the teacher's."""

    def __init__(self, teacher: Any) -> None:
        super().__init__(name="distiller")
        self.student = keras.layers.Dense(2)
        self.teacher = teacher

    def call(self, x: Any) -> Any:
        return self.student(x) - self.teacher(x)


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
