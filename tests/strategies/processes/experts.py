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
from tests.keras_ext.expert import clicks, overlap
from tests.strategies._keras_hooks.test_checks import Adds
from tests.strategies.gpu_graphs.programs import steps_of
from tests.strategies.processes.mesh_strategies import new_strategy
from tests.strategies.processes.ranks import shared_folder

MESHES: list[Mapping[str, int]] = json.loads(os.environ["SUITE_MESHES"])
#: The first mesh, if each of its replicas has one device.
OF_REPLICAS = [axes for axes in MESHES[:1] if set(axes) <= {"data", "expert"}]
STRATEGIES: dict[str, Any] = {}


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    for axes in MESHES:
        # On meshes without experts, the table is sharded over the replicas that share the optimizer.
        STRATEGIES[str(axes)] = new_strategy(axes, shard="optimizer" if set(axes) == {"data"} else None)
    for axes in OF_REPLICAS:
        STRATEGIES["weights"] = new_strategy(axes, shard="weights")


@functools.cache
def on_one_device(optimizer: str) -> list[Any]:
    """Returns the results of plain Keras, from the program that has started the ranks."""
    with np.load(Path(os.environ["SUITE_FOLDER"]) / f"{optimizer}.npz") as values:
        return list(values.values())


@functools.cache
def trained(*axes: tuple[str, int]) -> tuple[Any, list[Any]]:
    """Returns a trained model, which the tests use further, and the results of its training."""
    mesh = dict(axes)
    model = clicks.model(STRATEGIES[str(mesh)], mesh, clicks.optimizers_of(mesh)[0])
    return model, clicks.trained(model)


@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_the_numbers_of_one_device(axes: Mapping[str, int]) -> None:
    model, found = trained(*axes.items())
    clicks.assert_trained_as(found, on_one_device(clicks.optimizers_of(axes)[0]))
    held = clicks.own_rows(model)
    # The table and the experts' weights; along "tensor" each of the latter but one has two shards.
    num_weights = (11 if "tensor" in axes else 6) + 1 if "expert" in axes else int(set(axes) == {"data"})
    assert len(held) == num_weights
    assert all(shape[0] == clicks.EXPERTS // axes.get("expert", 1) for shape in held if len(shape) > 2)


@pytest.mark.parametrize("axes", [axes for axes in MESHES if "pipe" in axes], ids=str)
def test_micro_batches_are_routed_to_experts_one_by_one(axes: Mapping[str, int]) -> None:
    model = clicks.model(STRATEGIES[str(axes)], axes, clicks.optimizers_of(axes)[1])
    clicks.assert_trained_as(clicks.trained(model), on_one_device(clicks.optimizers_of(axes)[1]))


@pytest.mark.parametrize("axes", MESHES[:1], ids=str)
def test_inference_and_whole_files(axes: Mapping[str, int]) -> None:
    model, _ = trained(*axes.items())
    clicks.assert_same(clicks.inferred(model), on_one_device(clicks.optimizers_of(axes)[0])[-2:])
    strategy = STRATEGIES[str(axes)]
    folder = shared_folder("clicks", strategy.extended.engine.process_group)
    model.save(folder / "clicks.keras")
    opened = keras.models.load_model(folder / "clicks.keras")
    x, _ = clicks.data()
    predicted = model.predict(x, batch_size=16, verbose=0)
    np.testing.assert_allclose(opened.predict(x, verbose=0), predicted, rtol=1e-6, atol=1e-6)
    checkpoints = keras_ext.Checkpoints(folder / "checkpoints", steps_per_epoch=3)
    model.fit(*clicks.data(), batch_size=16, epochs=1, shuffle=False, verbose=0, callbacks=[checkpoints])
    again = clicks.model(strategy, axes, clicks.optimizers_of(axes)[0], seed=4)
    keras_ext.Checkpoints(folder / "checkpoints", steps_per_epoch=3).restore(again)
    # Compares all state from which training goes on; `spanning_sharded` trains on, which traces one more function.
    for one, other in zip(clicks.state(again), clicks.state(model), strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("axes", OF_REPLICAS, ids=str)
def test_the_shared_expert_the_share_of_each_expert_and_a_check(axes: Mapping[str, int]) -> None:
    strategy = STRATEGIES[str(axes)]
    group = strategy.extended.engine.process_group
    folder = shared_folder("loads", group)
    x = overlap.data()

    def fitted(strategy: Any, name: str) -> tuple[Any, Any]:
        model = overlap.model(strategy)
        if strategy is not None and strategy.is_chief:
            # One rank alone may check: the check runs no collective, and `fit` is not affected.
            assert strategy.check(model) == ()
        board = keras.callbacks.TensorBoard(str(folder / name), write_graph=False)
        loads = keras_ext.ExpertLoadHistory(board)
        model.fit(x, x, batch_size=overlap.ROWS, validation_data=(x, x), epochs=2, verbose=0, callbacks=[board, loads])
        return model, loads.history

    model, shares = fitted(strategy, "job")
    _, plain = fitted(None, f"rank {strategy.rank}")
    assert sorted(shares) == ["experts", "val_experts"]
    for name, own in shares.items():
        np.testing.assert_array_equal(own, plain[name])
    group.barrier()
    for part in ("train", "validation"):
        # Rank 0 writes.
        (events,) = (folder / "job" / part).glob("events.out.tfevents.*")
        assert b"expert_load/experts/3" in events.read_bytes()
    if strategy.mesh.size == strategy.world_size:
        overlap.assert_apart(steps_of(model.train_function)[0].graph, 1)


@pytest.mark.parametrize("axes", OF_REPLICAS, ids=str)
def test_a_check_of_weights_in_shards(axes: Mapping[str, int]) -> None:
    """Sharded weights are not gathered, and a loss computed with them is checked as with whole ones."""
    del axes
    strategy = STRATEGIES["weights"]
    with strategy.scope():
        layers = [
            keras.Input((overlap.FEATURES,)),
            keras.layers.Dense(overlap.FEATURES, activity_regularizer="l1"),
            Adds("product of means", name="adds"),
            keras_ext.MixtureOfExperts(overlap.EXPERTS, 16),
        ]
        model = keras.Sequential(layers)
    if strategy.is_chief:
        assert [finding.layer for finding in strategy.check(model)] == [f"{model.name}/adds"]
    strategy.extended.engine.process_group.barrier()
