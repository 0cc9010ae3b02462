"""Sharded checkpoints of two processes: run by `test_suites` in both at once, never collected.

Assertions compare values that both know: if one fails, the other fails, too.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from strategies import convert, layer_api
from strategies.saving import safetensors_file, sharded_save, write_items
from tests.keras_ext.checkpoints.states import full, same, values
from tests.strategies.processes.mesh_strategies import new_strategy, on
from tests.strategies.processes.ranks import shared_folder

L = keras.layers
STEPS = 4
X = np.random.default_rng(0).normal(size=(16, 6)).astype("float32")
Y = X[:, :3]

MESHES: Mapping[str, Mapping[str, int]] = {"data": {"data": 2}, "tensor": {"tensor": 2}, "pipe": {"pipe": 2}}
SHARDS: dict[str, Any] = {"weights": None, "optimizer": None}


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    for axes in MESHES.values():
        on(axes)
    for shard in SHARDS:
        SHARDS[shard] = new_strategy({"data": 2}, shard=shard)


def job() -> Any:
    return on(MESHES["data"]).extended.engine.process_group


@pytest.fixture
def shared(request: pytest.FixtureRequest) -> Path:
    return shared_folder(request.node.name.translate(str.maketrans("[]", "()")), job())


def made(name: str, units: int = 8) -> Any:
    strategy = SHARDS[name] if name in SHARDS else on(MESHES[name])
    keras.utils.set_random_seed(len(name))
    with strategy.scope():
        layers = [L.Dense(units, "tanh"), L.Dropout(0.2, seed=1), L.BatchNormalization(), L.Dense(5, name="second")]
        model = keras.Sequential([keras.Input((6,)), *layers, L.Dense(3)])
        if name == "tensor":
            model = keras_ext.parallelize(model)
        if name == "pipe":
            model = keras_ext.PipelineModel(model, num_microbatches=2, partition=["second"])
        model.compile(keras.optimizers.Adam(0.01), "mse")
    return model


def fit(model: Any, checkpoints: Any, first: int, last: int) -> Any:
    return model.fit(
        X, Y, batch_size=4, initial_epoch=first, epochs=last, shuffle=False, verbose=0, callbacks=[checkpoints]
    )


def test_from_every_mesh_to_every_other(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    # So that both processes write a range of what both have.
    monkeypatch.setattr(write_items, "SHARED_BYTES", 100)
    models = {name: made(name) for name in (*MESHES, *SHARDS)}
    saved = {}
    for number, (name, model) in enumerate(models.items()):
        checkpoints = keras_ext.Checkpoints(
            shared / name, STEPS, every_steps=2, sharded=True, background=number % 2 == 0
        )
        fit(model, checkpoints, 0, 1)
        saved[name] = values(model)
        sizes = [path.stat().st_size for path in (shared / name).glob("step-000000004.sharded/*.safetensors")]
        assert len(sizes) == 2
        if name != "pipe":
            # Stages differ in size; all else is divided evenly.
            assert max(sizes) < 1.4 * min(sizes)
    for model in models.values():
        for source, expected in saved.items():
            position = keras_ext.Checkpoints(shared / source, STEPS, sharded=True).restore(model)
            assert position == keras_ext.TrainingPosition(1)
            same(values(model), expected)
    # Into a file of Keras, which rank 0 makes and reads.
    path = shared / "plain.weights.h5"
    if layer_api.rank_of(model)[0] == 0:
        assert convert.main([str(shared / "tensor"), str(path)]) == 0
    job().barrier()
    models["pipe"].load_weights(path)
    same(values(models["pipe"]), saved["tensor"])
    for name in ("tensor", "weights"):
        # Each process reads the file for itself.
        keras_ext.load_weights(models[name], path)
        same(values(models[name]), saved["tensor"])


def test_goes_on_as_if_nothing_had_happened(shared: Path) -> None:
    for name in ("data", "pipe"):
        model = made(name)
        fit(model, keras_ext.Checkpoints(shared / name, STEPS, sharded=True, num_kept=5), 0, 1)
        results = []
        for run in range(2):
            assert keras_ext.Checkpoints(shared / name, STEPS).restore(model).epoch == 1
            others = keras_ext.Checkpoints(shared / f"{name} {run}", STEPS, sharded=True, background=True)
            results.append([*fit(model, others, 1, 3).history["loss"], *values(model)])
        same(*results)


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_of_one_rank(shared: Path, background: bool, monkeypatch: pytest.MonkeyPatch) -> None:
    model = made("tensor")
    checkpoints = keras_ext.Checkpoints(shared, STEPS, sharded=True, background=background)
    fit(model, checkpoints, 0, 1)
    expected = values(model)

    if layer_api.rank_of(model)[0] == 1:
        monkeypatch.setattr(safetensors_file, "write", full)
    with pytest.raises(ValueError, match=r"older ones are kept. Rank 1: OSError: .*No space left on device"):
        fit(model, checkpoints, 1, 3)
    monkeypatch.undo()
    assert keras_ext.Checkpoints(shared, STEPS).restore(model).epoch == 1
    same(values(model), expected)


def test_a_folder_of_one_rank_only(shared: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_save, "APPEARS_SECONDS", 0.5)
    model = made("data")
    rank = layer_api.rank_of(model)[0]
    with pytest.raises(ValueError, match=r"Rank 1: OSError: .*need a folder that all processes share"):
        fit(model, keras_ext.Checkpoints(shared / f"of rank {rank}", STEPS, sharded=True), 0, 1)


def test_damage_and_misfits_are_named_on_both_ranks(shared: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = made("data")
    fit(model, keras_ext.Checkpoints(shared, STEPS, sharded=True), 0, 2)
    with pytest.raises(ValueError, match=r"misshapen: layers/dense/vars/0, shape \(6, 9\), in the file \(6, 8\)"):
        keras_ext.Checkpoints(shared, STEPS).restore(made("pipe", units=9))
    if layer_api.rank_of(model)[0] == 0:
        [path] = shared.glob("step-000000008.sharded/model-00002-*.safetensors")
        data = bytearray(path.read_bytes())
        data[-1] ^= 1
        path.write_bytes(data)
    job().barrier()
    with caplog.at_level(logging.WARNING):
        assert keras_ext.Checkpoints(shared, STEPS).restore(model).epoch == 1
    assert "are not those that were written" in caplog.text
