"""Optimizers find weights by the ids, names and paths of one device, however the weights are stored."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from tests.releases import is_there

X = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")

HOWS: Mapping[str, Mapping[str, Any]] = {
    "data": {"mesh": {"data": 2}},
    "shard=weights": {"mesh": {"data": 2}, "shard": "weights"},
    "tensor": {"mesh": {"tensor": 2}},
    "tensor, shard=optimizer": {"mesh": {"data": 2, "tensor": 2}, "shard": "optimizer"},
}


def built() -> Any:
    keras.utils.set_random_seed(1)
    inputs = keras.Input((8,))
    inner = keras.Sequential([keras.Input((16,)), keras.layers.Dense(8, name="deep")], name="inner")
    up = keras.layers.Dense(16, "relu", name="up")
    return keras.Model(inputs, keras.layers.Dense(4, name="head")(inner(up(inputs))))


class ByName(keras.optimizers.SGD):
    """Uses the names that it gets on one device: of Keras' variables in `build`, of TensorFlow's in `update_step`."""

    def build(self, variables: Any) -> None:
        super().build(variables)
        self._factors = [0.1 if (v.path, v.name) == ("head/bias", "bias") else 1.0 for v in variables]

    def update_step(self, gradient: Any, variable: Any, learning_rate: Any) -> None:
        rate = learning_rate * self._factors[self._get_variable_index(variable)]
        super().update_step(gradient, variable, rate * (0.1 if variable.name == "up/kernel:0" else 1.0))


class Noting(keras.optimizers.Adam):
    """Records the variables that it is built for, and updates as Adam does, so that it gets shards."""

    def build(self, variables: Any) -> None:
        self.noted = sorted({(v.path, v.name) for v in variables})
        super().build(variables)


def excluding(model: Any) -> Any:
    optimizer = keras.optimizers.AdamW(0.01, weight_decay=0.5)
    weights = [model.get_layer("up").kernel, model.get_layer("inner").get_layer("deep").bias]
    optimizer.exclude_from_weight_decay(var_list=weights, var_names=["head/", "up/bias:0", "kernel$"])
    return optimizer


def choosing(model: Any) -> Any:
    chosen = keras.optimizers.OptimizerMap(excluding(model))
    chosen["head/kernel"], chosen["inner/.*"] = keras.optimizers.SGD(0.05), keras.optimizers.Adam(0.01)
    return keras.optimizers.MultiOptimizer(chosen)


OPTIMIZERS: dict[str, Callable[[Any], Any]] = {
    "excluding": excluding,
    "scaled": lambda model: keras.optimizers.LossScaleOptimizer(excluding(model), initial_scale=4.0),
    "noting": lambda model: Noting(0.01),
    "by name": lambda model: ByName(0.1),
} | ({"choosing": choosing} if is_there("MultiOptimizer") else {})


def trained(model: Any) -> list[Any]:
    model.fit(X, X[:, :4], batch_size=8, shuffle=False, verbose=0)
    return [np.array(each) for each in model.get_weights()]


def compiled(model: Any, optimizer: str) -> Any:
    model.compile(OPTIMIZERS[optimizer](model), "mse")
    return model


@functools.cache
def on_one_device(optimizer: str, times: int = 1) -> tuple[Any, Any]:
    model = compiled(built(), optimizer)
    weights = [trained(model) for _ in range(times)][-1]
    return weights, getattr(model.optimizer, "noted", None)


def assert_same(model: Any, optimizer: str, times: int = 1) -> None:
    expected, noted = on_one_device(optimizer, times)
    for mine, theirs in zip(trained(model), expected, strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
    assert getattr(model.optimizer, "noted", None) == noted


# An optimizer that looks at whole weights cannot have sharded updates where layers are split.
CASES = [
    *(("tensor", each) for each in OPTIMIZERS),
    *((how, "by name") for how in ("data", "shard=weights")),
    *(("tensor, shard=optimizer", each) for each in ("noting", list(OPTIMIZERS)[-1])),
    ("shard=weights", "scaled"),
]


@pytest.mark.parametrize(("how", "optimizer"), CASES)
def test_weights_are_found_by_name_path_and_list(how: str, optimizer: str) -> None:
    count = int(np.prod(list(HOWS[how]["mesh"].values())))
    with strategies.MirroredStrategy([f"CPU:{i}" for i in range(count)], **HOWS[how]).scope():
        model = keras_ext.parallelize(built()) if "tensor" in HOWS[how]["mesh"] else built()
        compiled(model, optimizer)
    assert_same(model, optimizer)
    paths = [each.path for each in model.optimizer.variables]
    assert how != "tensor" or optimizer == "by name" or len(set(paths)) == len(paths)


@pytest.mark.parametrize("optimizer", ["excluding", list(OPTIMIZERS)[-1]])
def test_a_copy_of_a_model_that_was_trained(optimizer: str) -> None:
    model = compiled(built(), optimizer)
    trained(model)
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2}).scope():
        split = keras_ext.parallelize(model)
    assert_same(split, optimizer, 2)


def test_a_list_of_weights_of_the_plain_model_is_of_its_copy() -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2}).scope():
        model = built()
        optimizer = excluding(model)
        split = keras_ext.parallelize(model)
        split.compile(optimizer, "mse")
    assert_same(split, "excluding")
