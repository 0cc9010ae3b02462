"""The mesh axis "expert" and sharded tables across processes: run by `test_experts` on all ranks."""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from tests.keras_ext.expert import clicks
from tests.strategies.processes.mesh_strategies import new_strategy
from tests.strategies.processes.ranks import shared_folder

MESHES: list[Mapping[str, int]] = json.loads(os.environ["SUITE_MESHES"])
STRATEGIES: dict[str, Any] = {}


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    for axes in MESHES:
        # Without experts the table lies on the replicas that share the optimizer.
        STRATEGIES[str(axes)] = new_strategy(axes, shard=None if "expert" in axes else "optimizer")


@functools.cache
def on_one_device(optimizer: str) -> list[Any]:
    """What was found there, by the program that has started the ranks."""
    with np.load(Path(os.environ["SUITE_FOLDER"]) / f"{optimizer}.npz") as values:
        return list(values.values())


@functools.cache
def trained(*axes: tuple[str, int]) -> tuple[Any, list[Any]]:
    """A model, which the tests go on with, and what was found of it then."""
    mesh = dict(axes)
    model = clicks.model(STRATEGIES[str(mesh)], mesh, clicks.optimizers_of(mesh)[0])
    return model, clicks.trained(model)


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_the_numbers_of_one_device(axes: Mapping[str, int]) -> None:
    model, found = trained(*axes.items())
    clicks.assert_trained_as(found, on_one_device(clicks.optimizers_of(axes)[0]))
    held = clicks.own_rows(model)
    assert len(held) == (7 if "expert" in axes else 1)
    assert all(shape[0] == clicks.EXPERTS // axes.get("expert", 1) for shape in held if len(shape) > 2)


@pytest.mark.parametrize("axes", [axes for axes in MESHES if "pipe" in axes], ids=str)
def test_micro_batches_are_dealt_to_experts_one_by_one(axes: Mapping[str, int]) -> None:
    model = clicks.model(STRATEGIES[str(axes)], axes, clicks.optimizers_of(axes)[1])
    clicks.assert_trained_as(clicks.trained(model), on_one_device(clicks.optimizers_of(axes)[1]))


@pytest.mark.parametrize("axes", MESHES[:1], ids=str)
def test_inference_and_whole_files(axes: Mapping[str, int]) -> None:
    model, _ = trained(*axes.items())
    clicks.assert_same(clicks.inferred(model), on_one_device(clicks.optimizers_of(axes)[0])[-2:])
    strategy = STRATEGIES[str(axes)]
    folder = shared_folder("clicks", strategy.extended.process_group)
    model.save(folder / "clicks.keras")
    opened = keras.models.load_model(folder / "clicks.keras")
    x, _ = clicks.data()
    predicted = model.predict(x, batch_size=16, verbose=0)
    np.testing.assert_allclose(opened.predict(x, verbose=0), predicted, rtol=1e-6, atol=1e-6)
    checkpoints = keras_ext.Checkpoints(folder / "checkpoints", steps_per_epoch=3)
    model.fit(*clicks.data(), batch_size=16, epochs=1, shuffle=False, verbose=0, callbacks=[checkpoints])
    again = clicks.model(strategy, axes, clicks.optimizers_of(axes)[0], seed=4)
    keras_ext.Checkpoints(folder / "checkpoints", steps_per_epoch=3).restore(again)
    # All that training goes on from; that it goes on costs another function to trace, and is in `spanning_sharded`.
    for one, other in zip(clicks.state(again), clicks.state(model), strict=True):
        np.testing.assert_array_equal(one, other)
