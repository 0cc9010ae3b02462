"""KerasHub's mixtures of experts computed sparsely: the same outputs, losses and files, on meshes too."""

from __future__ import annotations

import functools
import pathlib
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from tests.hub import backbones

pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

# Warnings from KerasHub's layers, and about weights that no loss depends on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

NAMES = ("MixtralBackbone", "QwenMoeBackbone", "Qwen3MoeBackbone", "Qwen3_5MoeBackbone", "GptOssBackbone")
ALL = [NAMES[0], *(pytest.param(name, marks=pytest.mark.parity_all) for name in NAMES[1:])]


def assert_close(one: list[Any], other: list[Any], limit: float = 1e-6) -> None:
    assert len(one) == len(other)
    for a, b in zip(one, other, strict=True):
        a, b = np.asarray(a), np.asarray(b)
        np.testing.assert_allclose(a, b, atol=limit * max(1.0, float(np.abs(b).max())))


def trained(model: Any, inputs: Any, targets: Any) -> list[Any]:
    model.compile(keras.optimizers.Adam(1e-3, epsilon=1e-3), backbones.losses_of(model))
    logs = model.fit(inputs, targets, batch_size=5, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [np.asarray(logs), *model.get_weights()]


@pytest.mark.parametrize("name", ALL)
def test_equals_the_dense_banks(name: str, tmp_path: pathlib.Path) -> None:
    model = backbones.build(name)
    sparse = keras_ext.replace_experts(model)
    inputs = backbones.inputs_of(model)
    targets = backbones.targets_of(model, inputs)
    assert_close(keras.tree.flatten(sparse(inputs)), keras.tree.flatten(model(inputs)))
    model(inputs, training=True)
    sparse(inputs, training=True)
    assert_close(sparse.losses, model.losses)
    sparse.save(tmp_path / "model.keras")
    again = keras.models.load_model(tmp_path / "model.keras")
    assert [type(layer) for layer in again._flatten_layers()] == [type(layer) for layer in model._flatten_layers()]
    assert_close(again.get_weights(), model.get_weights(), 0.0)
    assert_close(trained(sparse, inputs, targets), trained(model, inputs, targets))


@functools.cache
def on_one_device(name: str) -> list[Any]:
    """Returns the results of KerasHub's model on one device."""
    model = backbones.build(name)
    inputs = backbones.inputs_of(model)
    return trained(model, inputs, backbones.targets_of(model, inputs))


@pytest.mark.parametrize("axes", [pytest.param({"data": 2}, marks=pytest.mark.parity_all), {"expert": 2}], ids=str)
@pytest.mark.parametrize("name", ALL)
def test_two_replicas_and_experts_on_them_equal_one_device(name: str, axes: dict[str, int]) -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh=axes).scope():
        model = keras_ext.replace_experts(backbones.build(name))
        inputs = backbones.inputs_of(model)
        found = trained(model, inputs, backbones.targets_of(model, inputs))
    assert_close(found, on_one_device(name))


@pytest.mark.parity_all
def test_parallelize_leaves_sparse_banks_on_their_replicas() -> None:
    with strategies.MirroredStrategy([f"CPU:{k}" for k in range(4)], mesh={"expert": 2, "tensor": 2}).scope():
        model = keras_ext.parallelize(keras_ext.replace_experts(backbones.build("MixtralBackbone")))
        inputs = backbones.inputs_of(model)
        found = trained(model, inputs, backbones.targets_of(model, inputs))
    assert_close(found, on_one_device("MixtralBackbone"))
    # Gate, up and down of two blocks.
    assert sum(getattr(each.value, "has_own_rows", False) for each in model.weights) == 6


def test_a_check_finds_the_dense_banks_and_not_the_sparse_ones() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    with strategy.scope():
        model = backbones.build("MixtralBackbone")
        sparse = keras_ext.replace_experts(model)
    blocks = [each.path for each in model._flatten_layers() if type(each).__name__ == "MixtralSparseMoeBlock"]
    found = strategy.check(model)
    assert [finding.layer for finding in found] == blocks
    assert len(blocks) == 2
    assert all("keras_ext.replace_experts(model)" in finding.fix for finding in found)
    assert strategy.check(sparse) == ()
    assert strategies.MirroredStrategy(["CPU:0"]).check(model) == ()
