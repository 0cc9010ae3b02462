"""CentralStorageStrategy: its arguments, its refusals, and the placement of its variables."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from tests.strategies.parity.harness import features

COMPUTE = ["CPU:1", "CPU:2"]


def central(compute_devices: Any = COMPUTE, parameter_device: Any = "CPU:0") -> strategies.CentralStorageStrategy:
    return strategies.CentralStorageStrategy(compute_devices, parameter_device)


def linear(**kwargs: Any) -> keras.Model:
    model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1, kernel_initializer="ones")])
    model.compile(**({"optimizer": keras.optimizers.SGD(0.1), "loss": "mse"} | kwargs))
    return model


X = features(10, 3)
Y = X.sum(axis=1, keepdims=True)


class TestConstruction:
    def test_is_tensorflows(self) -> None:
        strategy = central()
        assert isinstance(strategy, tf.distribute.experimental.CentralStorageStrategy)
        assert strategy.num_replicas_in_sync == 2
        assert strategy.mesh.axes == {"data": 2}

    def test_takes_the_first_cpu_without_gpus(self) -> None:
        strategy = strategies.CentralStorageStrategy()
        assert strategy.num_replicas_in_sync == 1
        assert strategy.parameter_device.endswith("CPU:0")

    @pytest.mark.parametrize(("compute_devices", "holder"), [(["CPU:1"], "CPU:1"), (["CPU:1", "CPU:2"], "CPU:0")])
    def test_the_only_compute_device_or_the_host_holds_the_variables(
        self, compute_devices: list[str], holder: str
    ) -> None:
        assert central(compute_devices, None).parameter_device.endswith(holder)

    @pytest.mark.parametrize(("num_gpus", "holder"), [(1, "CPU:1"), (3, "CPU:0")])
    def test_takes_all_gpus_and_the_host_or_the_only_one(
        self, num_gpus: int, holder: str, monkeypatch: pytest.MonkeyPatch
    ) -> None:
        def listed(kind: str | None = None) -> list[str]:
            return [f"/device:CPU:{i}" for i in (range(1, 1 + num_gpus) if kind == "GPU" else [0])]

        monkeypatch.setattr("strategies.central_storage.list_own_devices", listed)
        strategy = strategies.CentralStorageStrategy()
        assert strategy.num_replicas_in_sync == num_gpus
        assert strategy.parameter_device.endswith(holder)

    @pytest.mark.parametrize(
        ("compute_devices", "parameter_device", "says"),
        [
            (["CPU:1", "CPU:1"], "CPU:0", "named twice"),
            (["CPU:99"], None, "CPU:99"),
            ([], None, "empty"),
            ("CPU:1", None, "Expected a list"),
            (COMPUTE, "GPU:0", r"is one of \['CPU:0', .*Received: parameter_device='GPU:0'"),
            (COMPUTE, "nowhere:one", "no such device"),
            (COMPUTE, ["CPU:0"], r"on one device.*Received: parameter_device=\['CPU:0'\]"),
        ],
    )
    def test_refuses(self, compute_devices: Any, parameter_device: Any, says: str) -> None:
        with pytest.raises(ValueError, match=says):
            central(compute_devices, parameter_device)

    def test_a_parameter_device_that_computes_as_well(self) -> None:
        with central(["CPU:0", "CPU:1"], "CPU:0").scope():
            model = linear()
        plain = linear()
        for each in (model, plain):
            each.fit(X, Y, verbose=0, shuffle=False, batch_size=3)
        np.testing.assert_allclose(model.get_weights()[0], plain.get_weights()[0], atol=1e-6)

    @pytest.mark.parametrize("compute", ["CPU:0", "CPU:1"], ids=["the same device", "another device"])
    def test_one_compute_device(self, compute: str) -> None:
        with central([compute], "CPU:0").scope():
            model = linear(jit_compile=True)
        plain = linear(jit_compile=True)
        assert model.fit(X, Y, verbose=0, shuffle=False).history == plain.fit(X, Y, verbose=0, shuffle=False).history
        assert strategies.bytes_per_device(model.weights) == {"CPU:0": 16}


class TestMemory:
    @pytest.mark.parametrize(
        "make",
        [
            lambda: keras.optimizers.Adam(use_ema=True, gradient_accumulation_steps=2),
            lambda: keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD(momentum=0.9)),
            keras.optimizers.Adafactor,
            keras.optimizers.Muon,
        ],
        ids=["Adam, averages, accumulators", "LossScaleOptimizer", "Adafactor", "Muon"],
    )
    def test_weights_and_slots_are_once_and_on_the_parameter_device(self, make: Callable[[], keras.Optimizer]) -> None:
        with central().scope():
            layers = [keras.layers.Embedding(50, 4), keras.layers.Flatten(), keras.layers.Dense(2)]
            model = keras.Sequential([keras.Input((3,)), *layers])
            model.compile(make(), "mse", metrics=["mae"])
        model.fit(np.ones((6, 3)), np.ones((6, 2)), batch_size=2, verbose=0)
        report = keras_ext.memory_report(model)
        assert report.weights == {"CPU:0": 4 * model.count_params()}
        own = [*model.optimizer.variables, *getattr(getattr(model.optimizer, "inner_optimizer", None), "variables", [])]
        numbers = {id(variable): np.size(variable.numpy()) * variable.value.dtype.size for variable in own}
        assert report.slots == {"CPU:0": sum(numbers.values())}

    def test_what_replicas_write_for_themselves_is_where_they_compute(self) -> None:
        with central().scope():
            layer = keras.layers.BatchNormalization(scale=False)
            model = keras.Sequential([keras.Input((3,)), layer, keras.layers.Dropout(0.5)])
        assert strategies.bytes_per_device([layer.beta]) == {"CPU:0": 12}
        assert strategies.bytes_per_device([layer.moving_mean]) == {"CPU:1": 12, "CPU:2": 12}
        model.compile("sgd", "mse")
        model.fit(X, X, batch_size=4, verbose=0)
        first, second = (component.numpy() for component in layer.moving_mean.value.values)
        assert np.any(first)
        np.testing.assert_array_equal(first, second)


def test_files_go_on_in_plain_keras(tmp_path: Any) -> None:
    with central().scope():
        model = linear(optimizer="adam")
    model.fit(X, Y, verbose=0, shuffle=False)
    model.save(tmp_path / "model.keras")
    plain = keras.models.load_model(tmp_path / "model.keras")
    with central().scope():
        again = keras.models.load_model(tmp_path / "model.keras")
    for each in (model, plain, again):
        each.fit(X, Y, verbose=0, shuffle=False)
    for mine, *others in zip(*(each.get_weights() for each in (model, plain, again)), strict=True):
        for other in others:
            np.testing.assert_allclose(mine, other, atol=1e-6)


def test_checkpoints_of_tensorflow(tmp_path: Any) -> None:
    with central().scope():
        model = linear(optimizer="adam")
    model.fit(X, Y, verbose=0)
    path = tf.train.Checkpoint(model=model).save(str(tmp_path / "checkpoint"))
    before = model.get_weights()
    model.set_weights([np.zeros_like(weight) for weight in before])
    tf.train.Checkpoint(model=model).restore(path).expect_partial()
    for mine, other in zip(before, model.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, other)
