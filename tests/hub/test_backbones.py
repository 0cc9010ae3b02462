"""Backbones of KerasHub on meshes equal plain Keras, and plans give reasons for weights that stay whole.

``make test ARGS="tests/hub --parity-all -n0"`` runs all of them; ``python -m tests.hub`` writes the table in docs.
"""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import pytest

import strategies
from tests.hub import backbones

pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

from tests.hub.parity import CELLS, LIMIT, measured

# Warnings from KerasHub's layers, and about weights that no loss depends on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

#: A causal decoder with grouped heads, split; an encoder in stages; images on a mesh of both.
DEFAULT = (
    ("LlamaBackbone", "tensor=4"),
    ("BertBackbone", "pipe=2"),
    ("ViTBackbone", "data=2, tensor=2"),
)
PLANS = ("MixtralBackbone", "FNetBackbone", "MobileNetBackbone", "XLNetBackbone")


def all_cells() -> list[Any]:
    try:
        names = backbones.names()
    except ImportError:
        return []
    rest = [(name, cell) for name in names for cell in CELLS if name not in backbones.CANNOT]
    return [*DEFAULT, *(pytest.param(*each, marks=pytest.mark.parity_all) for each in rest if each not in DEFAULT)]


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize(("name", "cell"), all_cells())
def test_equals_plain_keras(name: str, cell: str) -> None:
    [(_, found)] = measured(name, [cell])
    assert found.reason or (found.difference is not None and found.difference <= LIMIT), found
    if (name, cell) in DEFAULT:
        assert not found.reason
        assert found.share > 0.9 or "tensor" not in cell


def all_plans() -> list[Any]:
    try:
        names = backbones.names()
    except ImportError:
        return []
    return [*PLANS, *(pytest.param(name, marks=pytest.mark.parity_all) for name in names if name not in PLANS)]


@pytest.mark.parametrize("name", all_plans())
def test_no_large_weight_stays_whole_without_a_reason(name: str) -> None:
    import keras_ext

    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2}).scope():
        model = backbones.build(name)
        plan, split = keras_ext.default_plan(model), keras_ext.parallelize(model)
    size = sum(math.prod(weight.shape) for weight in model.weights)
    for weight in split.weights:
        # The names of shards end with their number.
        is_whole = not weight.name.endswith(("_0", "_1"))
        if is_whole and len(weight.shape) > 1 and math.prod(weight.shape) > 0.01 * size:
            # A path in the plan may begin with outer models that a weight's path omits.
            named = [
                path
                for path, reason in plan.whole.items()
                if reason and set(path.split("/")) & set(weight.path.split("/"))
            ]
            assert named, weight.path
    assert "% of the parameters are split." in str(plan)


def test_files_open_in_plain_kerashub(tmp_path: Path) -> None:
    import keras
    import numpy as np

    import keras_ext

    plain = backbones.build("GPT2Backbone")
    x = backbones.inputs_of(plain)
    wanted = plain.predict(x, verbose=0)
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2}).scope():
        split = keras_ext.parallelize(plain)
    assert split.__class__ is type(plain)
    split.save(tmp_path / "whole.keras")
    split.save_weights(tmp_path / "only.weights.h5")
    opened = keras.saving.load_model(tmp_path / "whole.keras")
    assert opened.__class__ is type(plain)
    assert all(type(layer).__module__.partition(".")[0] in ("keras", "keras_hub") for layer in opened._flatten_layers())
    np.testing.assert_allclose(opened.predict(x, verbose=0), wanted, rtol=0, atol=1e-6)
    other = type(plain).from_config(plain.get_config())
    other.load_weights(tmp_path / "only.weights.h5")
    np.testing.assert_allclose(other.predict(x, verbose=0), wanted, rtol=0, atol=1e-6)


def test_a_layout_map_of_kerashub_is_a_plan() -> None:
    import keras
    import keras_hub
    import numpy as np

    import keras_ext

    mesh = keras.distribution.DeviceMesh((1, 2), ("batch", "model"), ["cpu:0", "cpu:1"])
    layout = keras_hub.models.LlamaBackbone.get_layout_map(mesh)
    plain = backbones.build("LlamaBackbone")
    x = backbones.inputs_of(plain)
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"], mesh={"tensor": 2}).scope():
        split = keras_ext.parallelize(plain, layout)
    assert sum(weight.name.endswith("_1") for weight in split.weights) > 10
    np.testing.assert_allclose(split.predict(x, verbose=0), plain.predict(x, verbose=0), rtol=0, atol=1e-6)
