"""Files hold split weights whole: plain Keras and other meshes open them, and training continues to the same result."""

from __future__ import annotations

import contextlib
import pathlib
import subprocess
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.processes import python
from tests.strategies.parity.harness import labels, vectors

Axes = Mapping[str, int] | None

ALONE = """
import os, sys
os.environ.update(KERAS_BACKEND="tensorflow", CUDA_VISIBLE_DEVICES="-1")
# An import of them fails.
sys.modules["strategies"] = sys.modules["keras_ext"] = None
import keras, numpy
from tests.processes import python
model = keras.models.load_model(sys.argv[1])
numpy.savez(sys.argv[3], predicted=model.predict(numpy.load(sys.argv[2]), verbose=0),
            slots=len(model.optimizer.variables),
            classes=[f"{type(layer).__module__}.{type(layer).__name__}" for layer in model.layers])
"""


def scope(axes: Axes) -> contextlib.AbstractContextManager[Any]:
    return contextlib.nullcontext() if axes is None else mesh_strategy(axes).scope()


def make(split: bool) -> keras.Model:
    keras.utils.set_random_seed(1)
    column = keras_ext.ColumnParallelDense if split else keras.layers.Dense
    row = keras_ext.RowParallelDense if split else keras.layers.Dense
    pieces = {"gather_output": False} if split else {}
    model = keras.Sequential(
        [keras.Input((6,)), column(8, activation="relu", **pieces), row(4), column(4, activation="softmax")]
    )
    model.compile(keras.optimizers.Adam(0.01), "sparse_categorical_crossentropy", metrics=["accuracy"])
    return model


def fit(model: Any, epochs: int = 2) -> list[float]:
    options: dict[str, Any] = {"batch_size": 14, "shuffle": False, "verbose": 0}
    losses: list[float] = model.fit(vectors(), labels(), epochs=epochs, **options).history["loss"]
    return losses


def restored(axes: Axes, path: pathlib.Path) -> Any:
    with scope(axes):
        model = make(axes is not None)
        model.optimizer.build(model.trainable_variables)
        model.load_weights(path)
    return model


@pytest.mark.parametrize("before", [None, {"tensor": 2}, {"tensor": 4}, {"data": 2, "tensor": 2}], ids=str)
@pytest.mark.parametrize("after", [None, {"tensor": 2}, {"data": 2, "tensor": 4}], ids=str)
def test_goes_on_elsewhere(before: Axes, after: Axes, tmp_path: pathlib.Path) -> None:
    plain = make(False)
    losses = fit(plain, 4)
    with scope(before):
        first = make(before is not None)
    found = fit(first)
    first.save(tmp_path / "a model.keras")
    second = restored(after, tmp_path / "a model.keras")
    found += fit(second)
    np.testing.assert_allclose(found, losses, atol=1e-6)
    for mine, theirs in zip(second.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_opens_where_this_package_is_not(tmp_path: pathlib.Path) -> None:
    with scope({"tensor": 2}):
        model = make(True)
    fit(model)
    model.save(tmp_path / "split.keras")
    np.save(tmp_path / "x.npy", vectors())
    arguments = [str(tmp_path / name) for name in ("split.keras", "x.npy", "found.npz")]
    done = subprocess.run(python("-c", ALONE, *arguments), capture_output=True, text=True, timeout=250, check=False)
    assert done.returncode == 0, done.stderr
    found = np.load(tmp_path / "found.npz")
    np.testing.assert_allclose(found["predicted"], model.predict(vectors(), verbose=0), atol=1e-6)
    assert set(found["classes"]) == {"keras.src.layers.core.dense.Dense"}
    # Iteration, learning rate, and two slots for each of six weights.
    assert found["slots"] == 2 + 2 * 6


def test_arrays_are_whole() -> None:
    plain = make(False)
    with scope({"data": 2, "tensor": 2}):
        model = make(True)
    assert [w.shape for w in model.get_weights()] == [w.shape for w in plain.get_weights()]
    assert model.count_params() == plain.count_params()
    for mine, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
    changed = [w + 1 for w in plain.get_weights()]
    model.set_weights(changed)
    for mine, theirs in zip(model.get_weights(), changed, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    np.testing.assert_array_equal(model.layers[0].kernel.numpy(), changed[0])
    with pytest.raises(ValueError, match="shape"):
        model.set_weights([np.zeros((2, 2)), *changed[1:]])
    with pytest.raises(ValueError, match="of length"):
        model.set_weights(changed[1:])


def test_each_device_holds_its_part_to_the_byte() -> None:
    with scope({"data": 2, "tensor": 4}):
        model = keras.Sequential(
            [
                keras.Input((16,)),
                keras_ext.ColumnParallelDense(32, gather_output=False),
                keras_ext.RowParallelDense(8, use_bias=False),
            ]
        )
        model.compile(keras.optimizers.Adam(), "mse")
        model.optimizer.build(model.trainable_variables)
    report = keras_ext.memory_report(model)
    whole = 4 * (16 * 32 + 32 + 32 * 8)
    assert report.weights == {f"CPU:{i}": whole // 4 for i in range(8)}
    # The iteration, of 8 bytes, and the learning rate, of 4, are on the first device of each replica.
    assert report.slots == {f"CPU:{i}": 2 * whole // 4 + (12 if i % 4 == 0 else 0) for i in range(8)}
    lines = str(report).splitlines()
    assert lines[0].split() == ["device", "weights", "gradients", "optimizer", "together"]
    assert lines[1].split() == ["CPU:0", "800", "800", "1,612", "3,212"]


def test_a_whole_weight_is_never_on_a_device_that_holds_a_shard(monkeypatch: pytest.MonkeyPatch) -> None:
    """Initial values are drawn on the host, one weight at a time."""
    drawn = []

    def initializer(shape: Any, dtype: Any = None) -> Any:
        value = keras.initializers.GlorotUniform(seed=1)(shape, dtype)
        drawn.append((tuple(shape), value.device[-5:]))
        return value

    with scope({"tensor": 2}):
        layer = keras_ext.ColumnParallelDense(8, kernel_initializer=initializer)
        layer.build((None, 6))
    assert drawn == [((6, 8), "CPU:0")]


@pytest.mark.parametrize("by_name", [False, True])
def test_weights_of_the_legacy_format_go_into_shards(by_name: bool, tmp_path: pathlib.Path) -> None:
    plain = make(split=False)
    # Keras 2 put the frozen weights last.
    plain.layers[0].kernel.trainable = False
    for number, layer in enumerate(plain.layers):
        layer.name = f"layer_{number}"
    plain.save(tmp_path / "plain.h5")
    with scope({"tensor": 2}):
        split = keras_ext.parallelize(plain)
    split.set_weights([0 * weight for weight in plain.get_weights()])
    # Keras would skip weights that it cannot set.
    split.load_weights(tmp_path / "plain.h5", by_name=by_name, skip_mismatch=True)
    for mine, theirs in zip(split.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_array_equal(mine, theirs)
