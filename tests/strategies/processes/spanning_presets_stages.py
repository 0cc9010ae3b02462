"""Presets that are split and cut into stages, over two processes of two devices: run by `test_spanning_presets`."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras_hub as hub
import numpy as np
import pytest

import keras_ext
from strategies import layer_api
from strategies.saving import file_contents
from tests.keras_ext.presets import folders
from tests.strategies.processes.mesh_strategies import on

AXES = {"pipe": 2, "tensor": 2}


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    on(AXES)


def test_each_rank_reads_the_shards_of_its_stage(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    folders.llama3().save_to_preset(str(tmp_path / "preset"))
    sizes: list[int] = []
    original = file_contents.DatasetOfFile.__getitem__

    def counted(dataset: Any, where: Any) -> np.ndarray:
        value = original(dataset, where)
        sizes.append(value.size)
        return value

    monkeypatch.setattr(file_contents.DatasetOfFile, "__getitem__", counted)
    expected = hub.models.Backbone.from_preset(str(tmp_path / "preset"))
    with on(AXES).scope():
        model = keras_ext.from_preset(
            hub.models.Backbone,
            tmp_path / "preset",
            lambda backbone: keras_ext.PipelineModel(
                keras_ext.parallelize(backbone), num_microbatches=2, partition=["transformer_layer_1"]
            ),
        )
    own = [int(np.prod(weight.shape)) for weight in model.weights if not layer_api.is_remote(weight)]
    assert sum(own) < 0.8 * expected.count_params()
    # The vectors of norms are also read into the split model before it is cut into stages.
    assert sum(size for size in sizes if size > 32) == sum(size for size in own if size > 32)
    for one, other in zip(model.get_weights(), expected.get_weights(), strict=True):
        np.testing.assert_array_equal(one, other)
