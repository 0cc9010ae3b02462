"""The mesh axis "expert" and sharded tables across processes: run by `test_experts` on all ranks."""

from __future__ import annotations

import json
import os
from collections.abc import Mapping
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
        STRATEGIES[str(axes)] = new_strategy(axes, shard="optimizer" if set(axes) == {"data"} else None)


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_the_numbers_of_one_device(axes: Mapping[str, int]) -> None:
    optimizer = "adam" if "expert" in axes else "adagrad"
    strategy = STRATEGIES[str(axes)]
    model = clicks.model(strategy, axes, optimizer)
    clicks.assert_same(clicks.found(model), clicks.found(clicks.model(None, {}, optimizer)))
    held = clicks.own_rows(model)
    # The table, and the experts' weights, all but one of them in two shards each along "tensor".
    num_weights = (11 if "tensor" in axes else 6) + 1 if "expert" in axes else int(set(axes) == {"data"})
    assert len(held) == num_weights
    assert all(shape[0] == clicks.EXPERTS // axes.get("expert", 1) for shape in held if len(shape) > 2)
    if axes != MESHES[0]:
        return
    # Files are whole, and go on.
    folder = shared_folder("clicks", strategy.extended.process_group)
    model.save(folder / "clicks.keras")
    opened = keras.models.load_model(folder / "clicks.keras")
    x, _ = clicks.data()
    predicted = model.predict(x, verbose=0)
    np.testing.assert_allclose(opened.predict(x, verbose=0), predicted, rtol=1e-6, atol=1e-6)
    checkpoints = keras_ext.Checkpoints(folder / "checkpoints", steps_per_epoch=3)
    model.fit(*clicks.data(), batch_size=16, epochs=1, shuffle=False, verbose=0, callbacks=[checkpoints])
    again = clicks.model(strategy, axes, optimizer, seed=4)
    keras_ext.Checkpoints(folder / "checkpoints", steps_per_epoch=3).restore(again)
    for one, other in zip(clicks.found(again, 1), clicks.found(model, 1), strict=True):
        np.testing.assert_array_equal(one, other)
