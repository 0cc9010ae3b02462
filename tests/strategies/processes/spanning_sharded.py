"""Weights sharded over the data axis where a replica spans processes: run by `test_spanning_sharded` on all ranks."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from typing import Any

import keras
import numpy as np
import pytest
from keras import layers

import keras_ext
from strategies import layer_api
from strategies.replica.deferred import draw_of
from tests.strategies.processes.mesh_strategies import new_strategy
from tests.strategies.processes.ranks import shared_folder

VOCABULARY, UNITS = 11, 8
MESHES: list[Mapping[str, int]] = json.loads(os.environ["SUITE_MESHES"])
STRATEGIES: dict[str, Any] = {}


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    for axes in MESHES:
        STRATEGIES[str(axes)] = new_strategy(axes, shard="weights")


def language_model(seed: int = 1) -> keras.Model:
    """Returns a model whose first and last table are the same: in a pipeline several stages have it."""
    keras.utils.set_random_seed(seed)
    table = layers.ReversibleEmbedding(VOCABULARY, UNITS, name="tokens")
    tokens = keras.Input((6,), dtype="int32")
    x = table(tokens)
    for i in range(3):
        x = layers.Dense(UNITS, "tanh", name=f"hidden_{i}")(layers.LayerNormalization(name=f"norm_{i}")(x))
    return keras.Model(tokens, table(x, reverse=True))


def compiled(model: keras.Model) -> keras.Model:
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.Adam(1e-2, epsilon=1e-3, clipnorm=0.5), loss)
    return model


def spread(axes: Mapping[str, int], seed: int = 1, **options: Any) -> tuple[keras.Model, keras.Model]:
    """Returns the model split, or in stages with options, and the original model."""
    with STRATEGIES[str(axes)].scope():
        model = language_model(seed)
        made = keras_ext.parallelize(model) if "tensor" in axes else model
        if "pipe" in axes:
            made = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform", **options)
        compiled(made).optimizer.build(made.trainable_variables)
        return made, model


def trained(model: keras.Model, *callbacks: keras.callbacks.Callback, epochs: int = 1, first: int = 0) -> None:
    words = np.random.default_rng(0).integers(0, VOCABULARY, (22, 7))
    model.fit(
        words[:, :-1],
        words[:, 1:],
        batch_size=8,
        epochs=epochs,
        initial_epoch=first,
        verbose=0,
        shuffle=False,
        callbacks=list(callbacks),
    )


def state(model: keras.Model) -> list[np.ndarray]:
    return [*model.get_weights(), *layer_api.values_of(model, layer_api.joined(model.optimizer.variables))]


@functools.cache
def on_one_device() -> list[np.ndarray]:
    """Returns the state of the plain model after two epochs."""
    plain = compiled(language_model())
    trained(plain, epochs=2)
    return [*plain.get_weights(), *(variable.numpy() for variable in plain.optimizer.variables)]


# Checkpoints of stages are tested below.
@pytest.mark.parametrize(
    "axes",
    [pytest.param(axes, marks=[pytest.mark.parity_all] if "pipe" in axes else []) for axes in MESHES],
    ids=str,
)
def test_trained_saved_and_gone_on(axes: Mapping[str, int]) -> None:
    model, original = spread(axes)
    # The copies have the rule that draws the weights; each process has drawn only the weights that it holds.
    assert all(draw_of(variable) is not None for variable in original.trainable_variables)
    held = [v for v in model.trainable_variables if "shards" not in vars(v) and not layer_api.is_remote(v)]
    for variable in held:
        [component] = variable.value.values
        assert abs(2 * int(np.prod(component.shape)) - int(np.prod(variable.shape))) <= 1
    trained(model)
    folder = shared_folder(f"sharded {sorted(axes.items())}", STRATEGIES[str(axes)].extended.engine.process_group)
    model.save_weights(folder / "first.weights.h5")
    after_one = model.get_weights()
    again, _ = spread(axes, seed=2)
    again.load_weights(folder / "first.weights.h5")
    for one, other in zip(again.get_weights(), after_one, strict=True):
        np.testing.assert_array_equal(one, other)
    opened = compiled(language_model(3))
    opened.optimizer.build(opened.trainable_variables)
    opened.load_weights(folder / "first.weights.h5")
    for one, other in zip(opened.get_weights(), after_one, strict=True):
        np.testing.assert_array_equal(one, other)
    trained(model, epochs=2, first=1)
    for one, other in zip(state(model), on_one_device(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)


@pytest.mark.parametrize("axes", MESHES[:1], ids=str)
def test_checkpoints_go_on(axes: Mapping[str, int], monkeypatch: pytest.MonkeyPatch) -> None:
    # In this test weights are gathered for each pass of a micro-batch, in the one above once a step.
    options = {"reshard_after_pass": True} if "pipe" in axes else {}
    # With the default bucket size these units would count as small ones, which are not resharded.
    monkeypatch.setattr(STRATEGIES[str(axes)].extended.engine.sharded_weights.units, "_bucket_bytes", 512)
    folder = shared_folder("sharded checkpoints", STRATEGIES[str(axes)].extended.engine.process_group)
    first, _ = spread(axes, **options)
    trained(first, keras_ext.Checkpoints(folder, steps_per_epoch=3))
    # Without the callback: the files from which the second model goes on must not change.
    trained(first, epochs=2, first=1)
    for one, other in zip(state(first), on_one_device(), strict=True):
        np.testing.assert_allclose(one, other, rtol=1e-6, atol=1e-6)
    second, _ = spread(axes, seed=2, **options)
    checkpoints = keras_ext.Checkpoints(folder, steps_per_epoch=3)
    position = checkpoints.restore(second)
    assert (position.epoch, position.step) == (1, 0)
    trained(second, checkpoints, epochs=2, first=1)
    for one, other in zip(state(second), state(first), strict=True):
        np.testing.assert_array_equal(one, other)
