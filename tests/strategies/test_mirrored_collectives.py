"""The path of gradients on GPUs, TensorFlow's collectives, between logical CPU devices."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from strategies.engine import replicated
from tests.strategies.parity import cases_layers, cases_optimizers, cases_training
from tests.strategies.parity.harness import compare, execute, features, vectors

NAMES = (
    "Adam, global_clipnorm",
    "SGD, gradient_accumulation_steps",
    "Embedding, sparse gradients",
    "steps_per_execution=3",
    "run_eagerly=True",
    "BatchNormalization(synchronized=True)",
)
#: The calls of collectives in a step are those of the other cases.
LIKE_OTHERS = ("steps_per_execution=3", "SGD, gradient_accumulation_steps")
CASES = {
    case.name: case
    for case in (*cases_optimizers.CASES, *cases_training.CASES, *cases_layers.CASES)
    if case.name in NAMES
}


@pytest.fixture(autouse=True)
def collectives(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicated, "default_reduction", lambda devices: None)


@pytest.mark.parametrize(
    "name",
    [pytest.param(name, marks=pytest.mark.parity_all if name in LIKE_OTHERS else []) for name in NAMES],
)
def test_equals_one_device(name: str) -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"])
    assert "CollectiveAllReduce" in type(strategy.extended._cross_device_ops).__name__
    difference = compare(execute(CASES[name], None), execute(CASES[name], strategy))
    assert difference.largest <= 1e-6, difference


def test_two_strategies_at_once() -> None:
    models = []
    for num_replicas in (2, 4, 3):
        with strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)]).scope():
            models.append(keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")]))
            models[-1].compile("sgd", "mse")
    x = np.arange(36, dtype="float32").reshape(12, 3) / 36
    for _ in range(2):
        for model in models:
            model.fit(x, x[:, :1], batch_size=12, verbose=0)
    for model in models[1:]:
        np.testing.assert_allclose(model.get_weights()[0], models[0].get_weights()[0], atol=1e-6)


def test_each_part_of_the_replicas_by_itself() -> None:
    """Shards of weights are summed over the devices with the same shard, also in loops of several steps."""

    def trained(scope: Any) -> list[np.ndarray]:
        keras.utils.set_random_seed(3)
        with scope:
            layers = [keras.Input((6,)), keras_ext.ColumnParallelDense(8), keras_ext.RowParallelDense(3)]
            model = keras.Sequential(layers)
            model.compile(keras.optimizers.Adam(0.01), "mse", steps_per_execution=2)
        model.fit(vectors(), features(len(vectors()), 3), batch_size=14, epochs=2, shuffle=False, verbose=0)
        return [np.asarray(weight) for weight in model.get_weights()]

    strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(4)], mesh={"data": 2, "tensor": 2})
    for received, expected in zip(trained(strategy.scope()), trained(contextlib.nullcontext()), strict=True):
        np.testing.assert_allclose(received, expected, atol=1e-6)
