"""The steps at which weights are compared; `processes/suite_refusals.py` tests the comparison of processes."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from strategies import layer_api

X = np.ones((10, 3), "float32")


def compared(monkeypatch: pytest.MonkeyPatch, steps_per_execution: int, every_steps: int) -> list[str]:
    """Returns when weights are compared in two epochs of five steps."""
    steps: list[str] = []

    def compare(model: keras.Model, when: str, last_equal: str) -> None:
        assert last_equal == (f"after step {steps[-1].replace('/', ' of epoch ')}" if steps else "")
        steps.append(when.removeprefix("after step ").replace(" of epoch ", "/"))

    monkeypatch.setattr(layer_api, "compare_weights", compare)
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse", steps_per_execution=steps_per_execution)
    check = keras_ext.WeightsComparison(every_steps)
    model.fit(X, X[:, :1], batch_size=2, epochs=2, verbose=0, callbacks=[check])
    return steps


@pytest.mark.parametrize(
    ("steps_per_execution", "every_steps", "expected"),
    [
        (1, 1, [f"{step}/{epoch}" for epoch in (1, 2) for step in range(1, 6)]),
        (1, 3, ["3/1", "1/2", "4/2"]),
        (2, 3, ["4/1", "2/2", "4/2"]),
        (2, 5, ["5/1", "5/2"]),
        (1, 11, []),
    ],
)
def test_steps(
    steps_per_execution: int, every_steps: int, expected: list[str], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert compared(monkeypatch, steps_per_execution, every_steps) == expected


@pytest.mark.parametrize("every_steps", [0, -1, 1.5, None])
def test_numbers_of_steps_are_checked(every_steps: Any) -> None:
    with pytest.raises(ValueError, match=r"whole number from 1\. Received: every_steps="):
        keras_ext.WeightsComparison(every_steps)


def test_one_process_has_nobody_to_compare_with() -> None:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
    model.compile("sgd", "mse")
    model.fit(X, X[:, :1], verbose=0, callbacks=[keras_ext.WeightsComparison(1)])


@pytest.mark.parametrize("shard", [None, "optimizer"])
def test_copies_on_the_devices_of_one_process_are_compared(shard: Any) -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], shard=shard)
    with strategy.scope():
        model = keras.Sequential(
            [keras.Input((3,)), keras.layers.BatchNormalization(), keras.layers.Dense(1, name="d")]
        )
        model.compile("adam", "mse", metrics=["mae"])

    class Flips(keras.callbacks.Callback):
        """Changes one device's copy, as a memory error does."""

        def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
            if batch == 3:
                model.get_layer("d").bias.value.values[1].assign([7.0])

    with pytest.raises(
        ValueError,
        match=r"Replicas have different values of '\w*/?d/bias' \(checksums \w+ on CPU:0, \w+ on CPU:1\): the weights "
        r"of the model '\w+', after step 4 of epoch 1; they were equal after step 2 of epoch 1\.",
    ):
        model.fit(X, X[:, :1], batch_size=2, verbose=0, callbacks=[Flips(), keras_ext.WeightsComparison(2)])
