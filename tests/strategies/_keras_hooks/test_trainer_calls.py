"""Steps of the trainer, as functions of TensorFlow."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import strategies
from tests.strategies.gpu_graphs.programs import steps_of

STEPS = ("train_function", "test_function", "predict_function")


@pytest.mark.parametrize("num_devices", [1, 2])
def test_a_step_belongs_to_the_graph_that_is_called(num_devices: int) -> None:
    x, y = np.ones((8, 3), "float32"), np.ones((8, 2), "float32")
    with strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_devices)]).scope():
        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(2)])
        model.compile("sgd", "mse", jit_compile=False)
    model.fit(x, y, batch_size=4, validation_data=(x, y), verbose=0)
    model.predict(x, batch_size=4, verbose=0)

    def calls(function: str) -> list[Any]:
        [step] = steps_of(getattr(model, function))
        ops = step.graph.get_operations()
        assert sum(op.type in ("MatMul", "_FusedMatMul") for op in ops) >= num_devices
        return [op for op in ops if op.type.endswith("PartitionedCall")]

    assert not [call for function in STEPS for call in calls(function)]
    # A batch that is no dataset's is the argument of a function of its own.
    model.train_on_batch(x, y)
    assert len(steps_of(model.train_function)) == 2
