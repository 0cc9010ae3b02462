"""Micro-batches where row dependence matters: added losses, and tables looked up by positions."""

from __future__ import annotations

import contextlib
from typing import Any

import keras
import numpy as np
import pytest
from keras import ops

import keras_ext
from keras_ext.pipeline import executor
from tests.keras_ext.tensor.harness import assert_parity, mesh_strategy
from tests.strategies.parity.cases_losses import AddedLosses, Positions, tokens
from tests.strategies.parity.harness import targets, vectors

L = keras.layers
MESHES = {"pipe=2": {"pipe": 2}, "data=2,pipe=2": {"data": 2, "pipe": 2}}


def staged(model: Any, split: bool) -> Any:
    return keras_ext.PipelineModel(model, num_microbatches=3, partition="uniform") if split else model


@pytest.fixture(params=["in line", "as functions"])
def passes(request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> None:
    if request.param == "as functions":
        monkeypatch.setattr(executor, "MOST_CALLS_IN_LINE", 0)


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_added_losses(axes: Any) -> None:
    def make(split: bool) -> Any:
        penalised = L.Dense(4, activity_regularizer=keras.regularizers.L2(0.1))
        model = staged(keras.Sequential([keras.Input((6,)), AddedLosses(), penalised, L.Dense(1)]), split)
        model.compile(keras.optimizers.SGD(0.05), "mse", metrics=["mae"])
        return model

    assert_parity(make, vectors(), targets(), axes, predict=True)


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
def test_tables_looked_up_by_positions(axes: Any) -> None:
    def make(split: bool) -> Any:
        x = keras.Input((5,), dtype="int32")
        hidden = L.Dense(4, activation="tanh")(Positions()(x))
        model = staged(keras.Model(x, L.Dense(1)(L.GlobalAveragePooling1D()(hidden))), split)
        model.compile(keras.optimizers.Adam(0.02), "mse")
        return model

    assert_parity(make, tokens(), targets(), axes)


def test_batches_of_known_size_and_steps_that_run_as_they_are_called() -> None:
    """Run eagerly, a program gets the number of rows as a Python number."""

    def train(split: bool) -> Any:
        keras.utils.set_random_seed(3)
        x = keras.Input((5,), dtype="int32")
        hidden = AddedLosses()(L.Dense(6)(L.Flatten()(Positions()(x))))
        model = keras.Model(x, L.Dense(1, activity_regularizer="l2")(hidden))
        if split:
            model = keras_ext.PipelineModel(model, 2, num_microbatches=3, partition="uniform")
        model.compile(keras.optimizers.Adam(0.02), "mse", run_eagerly=split)
        losses = [model.train_on_batch(tokens()[:8], targets()[:8]) for _ in range(2)]
        return [*losses, *model.get_weights()]

    for plain, received in zip(train(False), train(True), strict=True):
        np.testing.assert_allclose(plain, received, rtol=0, atol=1e-6)


@pytest.mark.usefixtures("passes")
@pytest.mark.parametrize("axes", [{"pipe": 2}, pytest.param({"data": 2}, marks=pytest.mark.parity_all)], ids=str)
def test_positions_counted_in_batches_of_known_size(axes: Any) -> None:
    """Positions are counted as in `examples/gpt`; with a static batch size, the graph has only a constant of ones."""

    def train(split: bool) -> Any:
        keras.utils.set_random_seed(3)
        with mesh_strategy(axes).scope() if split else contextlib.nullcontext():
            x = keras.Input((5,), dtype="int32")
            positions = ops.cumsum(ops.ones_like(x), axis=1) - 1
            hidden = L.Dense(4, "tanh")(L.Embedding(7, 4)(x) + L.Embedding(5, 4)(positions))
            model = keras.Model(x, L.Dense(1)(L.Flatten()(hidden)))
            if split and "pipe" in axes:
                model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
            model.compile(keras.optimizers.Adam(0.02, epsilon=1e-3), "mse")
        # Three rows split into two and one; four rows would split evenly, and sums in place of means go unnoticed.
        losses = [model.train_on_batch(tokens()[:rows], targets()[:rows]) for rows in (3, 4, 3, 4)]
        return [*losses, *model.get_weights()]

    for plain, received in zip(train(False), train(True), strict=True):
        np.testing.assert_allclose(plain, received, rtol=0, atol=1e-6)
