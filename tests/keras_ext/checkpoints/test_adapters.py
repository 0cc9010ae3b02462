"""A run with LoRA resumes from its checkpoints, also on other meshes, with the numbers of an uninterrupted run."""

from __future__ import annotations

import functools
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from keras_ext.checkpoints import adapters
from tests.keras_ext.tensor.harness import mesh_strategy

X = np.random.default_rng(0).standard_normal((16, 8)).astype("float32")
Y = X[:, :4] * 2


def made(mesh: dict[str, int], rank: int = 2) -> Any:
    keras.utils.set_random_seed(1)
    layers = [keras.layers.Dense(16, "relu"), keras.layers.Dense(8), keras.layers.Dense(4)]
    model = keras.Sequential([keras.Input((8,)), *layers])
    for layer in layers[:2] if rank else ():
        layer.enable_lora(rank, lora_alpha=4, b_initializer=keras.initializers.RandomNormal(0.0, 0.1))
    with mesh_strategy(mesh).scope():
        split = keras_ext.parallelize(model) if "tensor" in mesh else model
        split = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform") if "pipe" in mesh else split
        if mesh:
            split.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse")
    if not mesh:
        split.compile(keras.optimizers.Adam(0.01, epsilon=1e-3), "mse")
    return split


def fit(model: Any, checkpoints: Any = None, **epochs: int) -> None:
    callbacks = [] if checkpoints is None else [checkpoints]
    model.fit(X, Y, batch_size=8, shuffle=False, verbose=0, callbacks=callbacks, **epochs)


@functools.cache
def uninterrupted() -> list[np.ndarray]:
    model = made({})
    fit(model, epochs=2)
    return list(model.get_weights())


@pytest.mark.parametrize(("before", "after"), [({"tensor": 2}, {"pipe": 2}), ({"pipe": 2}, {}), ({}, {"tensor": 2})])
def test_goes_on(before: dict[str, int], after: dict[str, int], tmp_path: Path) -> None:
    first = made(before)
    fit(first, keras_ext.Checkpoints(tmp_path, steps_per_epoch=2), epochs=1)
    second, checkpoints = made(after), keras_ext.Checkpoints(tmp_path, steps_per_epoch=2)
    assert checkpoints.restore(second).epoch == 1
    for one, other in zip(first.get_weights(), second.get_weights(), strict=True):
        np.testing.assert_array_equal(other, one)
    fit(second, checkpoints, initial_epoch=1, epochs=2)
    for one, other in zip(uninterrupted(), second.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, rtol=1e-6, atol=1e-6)
    assert all(layer.lora_enabled for layer in second.layers if getattr(layer, "lora_rank", None))


def test_of_another_rank(tmp_path: Path) -> None:
    fit(made({}), keras_ext.Checkpoints(tmp_path, steps_per_epoch=2), epochs=1)
    [path] = tmp_path.glob("*.npz")
    for rank in (3, 0):
        with pytest.raises(ValueError, match="with the rank, as when"):
            adapters.read(path, made({}, rank))
