"""Generation over stages: calls on the stages' devices, rows in flight; tokens are compared in `tests/hub`."""

from __future__ import annotations

from collections import Counter
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from tests.hub import backbones
from tests.keras_ext.tensor.harness import mesh_strategy

keras_hub = pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

IDS = np.random.default_rng(0).integers(1, 48, (5, 8))
PROMPTS = {"token_ids": IDS, "padding_mask": (np.arange(8) < 3) * np.ones((5, 1), "int32")}


def task() -> Any:
    model = keras_hub.models.LlamaCausalLM(backbones.build("LlamaBackbone"), preprocessor=None)
    model.compile(sampler="greedy", jit_compile=False)
    return model


def products(concrete: Any) -> Counter[str]:
    """Returns the number of matrix products on each device, in a function and in the loops that it calls."""
    definition = concrete.graph.as_graph_def()
    nodes = [*definition.node, *(node for function in definition.library.function for node in function.node_def)]
    return Counter(node.device.rpartition("device:")[2] for node in nodes if node.op == "MatMul" and node.device)


def test_stages_work_on_groups_of_rows_each_on_its_device() -> None:
    plain = task()
    expected = plain.generate({**PROMPTS}, stop_token_ids=None)["token_ids"]
    counts = {}
    for number in (1, 3):
        strategy = mesh_strategy({"pipe": 2})
        with strategy.scope():
            model = keras_ext.PipelineModel(task(), num_microbatches=number, partition="uniform")
        np.testing.assert_array_equal(model.generate({**PROMPTS}, stop_token_ids=None)["token_ids"], expected)
        tensors = {name: keras.ops.convert_to_tensor(value) for name, value in PROMPTS.items()}
        concrete = model.generate_function.get_concrete_function(tensors, stop_token_ids=None)
        counts[number] = products(concrete)
    # Two blocks of the same size: one on each device, three times as often with three groups of rows.
    assert counts[1]["CPU:0"] > 0
    assert counts[1]["CPU:1"] > 0
    assert counts[3] == Counter({device: 3 * count for device, count in counts[1].items()})

    # Step by step, and with a sampler that selects rows of the cache.
    model.run_eagerly = True
    model.generate_function = None
    np.testing.assert_array_equal(model.generate({**PROMPTS}, stop_token_ids=None)["token_ids"], expected)
    model.run_eagerly = False
    plain.compile(sampler="beam", jit_compile=False)
    with strategy.scope():
        model.compile(sampler="beam", jit_compile=False)
    found = [each.generate({**PROMPTS}, stop_token_ids=None)["token_ids"] for each in (plain, model)]
    np.testing.assert_array_equal(*found)


def test_layers_are_as_before_when_a_call_fails() -> None:
    with mesh_strategy({"pipe": 2}).scope():
        model = keras_ext.PipelineModel(task(), partition="uniform")
    before = {layer.name: set(vars(layer)) for stage in model._stages for layer in stage.layers}
    with pytest.raises(KeyError):
        model.generate_step({"token_ids": keras.ops.convert_to_tensor(IDS)})
    assert {layer.name: set(vars(layer)) for stage in model._stages for layer in stage.layers} == before
    assert model.predict(PROMPTS, verbose=0).shape == (5, 8, 48)
