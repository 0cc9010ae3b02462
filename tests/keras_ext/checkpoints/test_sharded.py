"""Sharded checkpoints: any mesh goes on from any other's, damage is found, and errors name tensors.

Several processes are in ``tests/strategies/processes/sharded_checkpoints.py``.
"""

from __future__ import annotations

import itertools
import logging
import math
import shutil
import threading
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from strategies import convert, layer_api
from strategies.converting import open_tensors
from strategies.saving import safetensors_file, sharded_save
from tests.keras_ext.checkpoints.states import full, same, values
from tests.strategies.parity.harness import labels, vectors

L = keras.layers
X, Y = vectors()[:16], labels()[:16]
STEPS = 4
#: Mesh axes and `shard`.
MESHES: dict[str, tuple[dict[str, int] | None, Any]] = {
    "one device": (None, None),
    "shard=weights": ({"data": 2}, "weights"),
    "shard=optimizer": ({"data": 2}, "optimizer"),
    "pipe=2, tensor=2": ({"pipe": 2, "tensor": 2}, None),
    "data=2, tensor=2, shard=weights": ({"data": 2, "tensor": 2}, "weights"),
}


#: All meshes of up to eight devices, for each way to shard.
ALL: dict[str, tuple[dict[str, int] | None, Any]] = {"one device": (None, None)} | {
    f"{axes}, shard={shard}": (axes, shard)
    for axes in (
        *({axis: size} for axis in ("data", "tensor") for size in (2, 4)),
        {"pipe": 2},
        *({one: 2, other: 2} for one, other in itertools.combinations(("data", "pipe", "tensor"), 2)),
        {"data": 2, "pipe": 2, "tensor": 2},
    )
    for shard in (None, "optimizer", "gradients", "weights")
    if shard is None or "data" in axes
}


def made(name: str, *, units: int = 8, lora: bool = False) -> keras.Model:
    mesh, shard = MESHES[name] if name in MESHES else ALL[name]

    def layers(seed: int) -> keras.Model:
        keras.utils.set_random_seed(seed)
        return keras.Sequential(
            [
                keras.Input((6,)),
                L.Dense(units, "tanh", name="up"),
                L.Dropout(0.2, seed=3),
                L.BatchNormalization(name="norm"),
                L.Dense(5, name="down"),
                L.Dense(3, "softmax", name="head"),
            ]
        )

    def finished(model: keras.Model) -> keras.Model:
        if lora:
            next(layer for layer in model._flatten_layers() if layer.name == "up").enable_lora(2)
        model.compile(keras.optimizers.Adam(0.05), "sparse_categorical_crossentropy", metrics=["accuracy"])
        return model

    if mesh is None:
        return finished(layers(1))
    devices = [f"CPU:{i}" for i in range(math.prod(mesh.values()))]
    with strategies.MirroredStrategy(devices, mesh=mesh, shard=shard).scope():
        model = keras_ext.parallelize(layers(2)) if "tensor" in mesh else layers(2)
        if "pipe" in mesh:
            model = keras_ext.PipelineModel(model, num_microbatches=2, partition=["norm"])
        return finished(model)


def fit(model: keras.Model, checkpoints: Any, first: int, last: int) -> Any:
    return model.fit(
        X, Y, batch_size=4, initial_epoch=first, epochs=last, shuffle=False, verbose=0, callbacks=[checkpoints]
    )


def test_from_every_mesh_to_every_other_and_to_plain_keras(tmp_path: Path) -> None:
    models = {name: made(name) for name in MESHES}
    saved = {}
    for number, (name, model) in enumerate(models.items()):
        checkpoints = keras_ext.Checkpoints(tmp_path / name, STEPS, sharded=True, background=number % 2 == 0)
        fit(model, checkpoints, 0, 1)
        saved[name] = values(model)
    for model in models.values():
        for source, expected in saved.items():
            position = keras_ext.Checkpoints(tmp_path / source, STEPS, sharded=True).restore(model)
            assert position == keras_ext.TrainingPosition(epoch=1)
            same(values(model), expected)
    # A converted file opens in plain Keras, with the state of the optimizer.
    source, last = list(MESHES)[2], list(MESHES)[-1]
    assert convert.main([str(tmp_path / source), str(tmp_path / "plain.weights.h5")]) == 0
    plain = made("one device")
    plain.optimizer.build(plain.trainable_variables)
    plain.load_weights(tmp_path / "plain.weights.h5")
    same(values(plain), saved[source])
    # Training goes on as it did before, also with what is drawn.
    checkpoints = keras_ext.Checkpoints(tmp_path / last, STEPS, sharded=True, num_kept=9)
    losses, states = [], []
    for _ in range(2):
        shutil.rmtree(tmp_path / "others", ignore_errors=True)
        checkpoints.restore(models[last])
        others = keras_ext.Checkpoints(tmp_path / "others", STEPS, sharded=True, background=True, every_steps=2)
        losses.append(fit(models[last], others, 1, 3).history["loss"])
        states.append(values(models[last]))
    assert losses[0] == losses[1]
    same(states[0], states[1])


@pytest.mark.parity_all
@pytest.mark.timeout(1800)
def test_the_whole_matrix(tmp_path: Path) -> None:
    """From every mesh to every other, from both forms."""
    models, saved = {name: made(name) for name in ALL}, {}
    for number, (name, model) in enumerate(models.items()):
        form = {"sharded": number % 3 > 0, "background": number % 3 == 1}
        fit(model, keras_ext.Checkpoints(tmp_path / str(number), STEPS, **form), 0, 1)
        saved[name] = values(model)
    for name, model in models.items():
        for number, (source, expected) in enumerate(saved.items()):
            keras_ext.Checkpoints(tmp_path / str(number), STEPS).restore(model)
            try:
                same(values(model), expected)
            except AssertionError as error:
                raise AssertionError(f"from {source} to {name}") from error


def test_adapters_and_kinds_of_checkpoints_are_mixed(tmp_path: Path) -> None:
    model = made("data=2, tensor=2, shard=weights", lora=True)
    for epoch, is_sharded in enumerate((False, True, False, True)):
        checkpoints = keras_ext.Checkpoints(tmp_path, STEPS, sharded=is_sharded, num_kept=2)
        assert checkpoints.restore(model).epoch == epoch
        fit(model, checkpoints, epoch, epoch + 1)
        kept = {path.name.split(".")[0] for path in tmp_path.iterdir()}
        assert len(kept) == min(epoch + 1, 2)
    plain = made("one device", lora=True)
    keras_ext.Checkpoints(tmp_path, STEPS).restore(plain)
    same(values(plain), values(model))
    assert any(name.startswith("adapters/") for name in _names(tmp_path))


def _names(folder: Path) -> list[str]:
    with open_tensors(folder) as tensors:
        return list(tensors)


def test_a_damaged_checkpoint_is_named_and_an_older_one_used(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    model = made("one device")
    fit(model, keras_ext.Checkpoints(tmp_path, STEPS, sharded=True), 0, 2)
    [newest] = tmp_path.glob("step-000000008.sharded/*.safetensors")
    data = bytearray(newest.read_bytes())
    data[-3] ^= 4
    newest.write_bytes(data)
    with caplog.at_level(logging.WARNING):
        assert keras_ext.Checkpoints(tmp_path, STEPS).restore(model).epoch == 1
    assert "optimizer/vars/" in caplog.text
    assert "not those that were written" in caplog.text
    for path in tmp_path.glob("*/*.index.json"):
        path.write_text(path.read_text().replace("float32", "float16", 1))
    with pytest.raises(ValueError, match="None of the 2 checkpoints"):
        keras_ext.Checkpoints(tmp_path, STEPS).restore(model)


def test_all_that_differs_is_named_at_once(tmp_path: Path) -> None:
    fit(made("one device"), keras_ext.Checkpoints(tmp_path, STEPS, sharded=True), 0, 1)
    other = made("shard=weights", units=9)
    before = values(other)
    with pytest.raises(ValueError, match="another model or optimizer") as caught:
        keras_ext.Checkpoints(tmp_path, STEPS).restore(other)
    text = str(caught.value)
    assert "misshapen: layers/dense/vars/0, shape (6, 9), in the file (6, 8)" in text
    assert "misshapen: optimizer/vars/2, shape (6, 9), in the file (6, 8)" in text
    same(values(other), before)
    other.compile("sgd", "sparse_categorical_crossentropy")
    with pytest.raises(ValueError, match="extra: optimizer/vars/17"):
        keras_ext.Checkpoints(tmp_path, STEPS).restore(other)
    with pytest.raises(ValueError, match="sharded=True as well"):
        keras_ext.Checkpoints(tmp_path, STEPS, background=True)


@pytest.mark.parametrize("mesh", ["one device", "shard=weights"])
def test_the_files_have_what_the_step_had(mesh: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Training goes on while nothing is written yet: the tensors that are held do not change."""
    go_on, original = threading.Event(), safetensors_file.write

    def waiting(*args: Any) -> Any:
        assert go_on.wait(60)
        return original(*args)

    monkeypatch.setattr(safetensors_file, "write", waiting)
    model = made(mesh)
    checkpoints = keras_ext.Checkpoints(tmp_path, STEPS, sharded=True, background=True)
    checkpoints.set_model(model)
    fit(model, keras.callbacks.Callback(), 0, 1)
    expected = values(model)
    checkpoints._save(keras_ext.TrainingPosition(1))
    fit(model, keras.callbacks.Callback(), 1, 2)
    assert not np.array_equal(values(model)[0], expected[0])
    assert not list(tmp_path.glob("*.json"))
    go_on.set()
    checkpoints.on_train_end()
    keras_ext.Checkpoints(tmp_path, STEPS).restore(model)
    same(values(model), expected)


@pytest.mark.parametrize("background", [False, True])
def test_a_full_disk_leaves_the_last_checkpoint(
    background: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    model = made("one device")
    checkpoints = keras_ext.Checkpoints(tmp_path, STEPS, sharded=True, background=background)
    fit(model, checkpoints, 0, 1)
    expected = values(model)

    monkeypatch.setattr(safetensors_file, "write", full)
    with pytest.raises(ValueError, match=r"could not be saved; older ones are kept. Rank 0: OSError: .*No space left"):
        fit(model, checkpoints, 1, 3)
    monkeypatch.undo()
    assert keras_ext.Checkpoints(tmp_path, STEPS).restore(model).epoch == 1
    same(values(model), expected)
    # The next checkpoint deletes the unfinished one.
    fit(model, keras_ext.Checkpoints(tmp_path, STEPS, sharded=True, num_kept=1), 1, 2)
    assert {path.name.split(".")[0] for path in tmp_path.iterdir()} == {"step-000000008"}


def test_a_folder_that_does_not_appear(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sharded_save, "APPEARS_SECONDS", 0.1)
    folder, model = tmp_path / "of rank 0", made("one device")

    def tensors() -> dict[str, Any]:
        # The other ranks do not see it.
        shutil.rmtree(folder)
        return {}

    saves = layer_api.ShardedSaves(False)
    with pytest.raises(
        ValueError, match=r"does not appear here within 0 s\. Sharded checkpoints need a folder that all"
    ):
        saves.save(model, folder, tensors, folder.mkdir, lambda: None)
