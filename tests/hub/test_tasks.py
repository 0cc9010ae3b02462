"""Tasks of KerasHub, whose classes have their own `compile`, are split and trained as they were compiled."""

from __future__ import annotations

import contextlib
import json
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from tests.keras_ext.tensor.harness import mesh_strategy

keras_hub = pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

IDS = np.random.default_rng(0).integers(0, 11, (8, 6))
INPUTS = {"token_ids": IDS, "padding_mask": np.ones((8, 6), "int32")}
PROMPT = {"token_ids": IDS, "padding_mask": np.array([[1, 1, 0, 0, 0, 0]] * 8)}


def task() -> Any:
    keras.utils.set_random_seed(1)
    sizes = {"vocabulary_size": 11, "num_layers": 1, "num_heads": 2, "hidden_dim": 8, "intermediate_dim": 16}
    backbone = keras_hub.models.GPT2Backbone(**sizes, max_sequence_length=6, dropout=0.0)
    model = keras_hub.models.GPT2CausalLM(backbone, preprocessor=None)
    optimizer = keras.optimizers.AdamW(1e-2, weight_decay=0.3)
    optimizer.exclude_from_weight_decay(var_names=["bias", "embedding"])
    # Unseeded: the sampler of the copy continues from the current state.
    model.compile(optimizer, sampler=keras_hub.samplers.TopKSampler(k=3))
    return model


def trained(model: Any) -> list[Any]:
    history = model.fit(INPUTS, np.roll(IDS, 1), batch_size=4, shuffle=False, verbose=0).history
    return [*history.values(), *model.get_weights()]


def test_a_preset_lists_the_tasks_of_its_backbone(tmp_path: Path) -> None:
    listed = []
    for name, strategy in (("plain", None), ("split", mesh_strategy({"data": 2}))):
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model = task()
        made = type(model.backbone)
        # KerasHub saves the backbone of a task by itself.
        model.save_to_preset(str(tmp_path / name))
        assert type(model.backbone) is made
        listed.append(json.loads((tmp_path / name / "metadata.json").read_text())["tasks"])
    assert listed[0] == listed[1] != []


def test_a_task_goes_on_as_it_was_compiled() -> None:
    results = []
    for split in (False, True):
        model = task()
        trained(model)
        # Makes the model keep a compiled function, which the copy must make again.
        model.generate({**PROMPT}, stop_token_ids=None)
        if split:
            with mesh_strategy({"tensor": 2}).scope():
                model = keras_ext.parallelize(model)
        assert model.__class__ is keras_hub.models.GPT2CausalLM
        results.append([*trained(model), model.generate({**PROMPT}, stop_token_ids=None)["token_ids"]])
    for mine, theirs in zip(*reversed(results), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=1e-6)
