"""Tasks of KerasHub, fine-tuned on meshes: what is learnt, generated and saved equals plain Keras on one device.

``make test ARGS="tests/hub/test_finetuning.py --parity-all -n0"`` runs all of them; ``python -m
tests.hub.finetuning_table docs/numbers/finetuning_table.md`` writes the table in docs.
"""

from __future__ import annotations

import contextlib
import itertools
from pathlib import Path
from typing import Any

import numpy as np
import pytest

pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

import keras_ext
from tests.hub import tasks, texts
from tests.hub.finetuning import LIMIT, MESHES, cell, difference, differences, strategy_of

# Warnings from KerasHub's layers, and about weights that no loss depends on.
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.usefixtures("without_rewriting")]

#: Spread over meshes, families and ways; cells of one family and way share what is computed on one device. Replicas
#: alone are in the test of strings.
GATE = (
    ("GPT2", "QLoRA", "data=2, tensor=2"),
    ("GPT2", "QLoRA", "pipe=2"),
    ("Llama", "LoRA", "shard=weights"),
    ("Llama", "LoRA", "pipe=2, tensor=2"),
)
SAMPLED = ("GPT2", "Llama")
ALL = tuple(itertools.product(tasks.FAMILIES, tasks.WAYS, MESHES))


@pytest.mark.parametrize(
    ("name", "way", "mesh"),
    [*GATE, *(pytest.param(*each, marks=pytest.mark.parity_all) for each in ALL if each not in GATE)],
)
def test_equals_plain_keras(name: str, way: str, mesh: str) -> None:
    found = cell(name, way, mesh)
    # A reason in brackets: a model whose own rounding grows more than the difference.
    assert "NOT EQUAL" not in found, found
    assert not found.startswith("-") or (name in tasks.BALANCED and way == "QLoRA"), found
    if (name, way, mesh) in GATE:
        assert float(found) <= LIMIT


@pytest.mark.parity_all
@pytest.mark.parametrize(("name", "mesh"), [each[::2] for each in ALL if each[0] in SAMPLED and each[1] == "full"])
def test_samplers(name: str, mesh: str) -> None:
    found = differences(name, "full", mesh, ("top-k", "top-p", "beam"))
    assert max(found.values()) <= LIMIT, found


@pytest.mark.parametrize(
    "mesh", ["pipe=2", *(pytest.param(each, marks=pytest.mark.parity_all) for each in MESHES if each != "pipe=2")]
)
def test_strings_go_in_and_come_out(mesh: str, tmp_path: Path) -> None:
    import keras_hub

    found: list[list[Any]] = []
    prompts = ["A", "Every change keeps", "Full type"]
    for strategy in (None, strategy_of(mesh)):
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model = texts.task()
            if "tensor" in mesh and strategy is not None:
                model = keras_ext.parallelize(model)
            if "pipe" in mesh and strategy is not None:
                model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
            tasks.compile_task(model, sampler=keras_hub.samplers.TopKSampler(k=5, seed=3))
        history = model.fit(texts.rows(), batch_size=tasks.BATCH_SIZE, shuffle=False, verbose=0).history
        generated = model.generate(prompts)
        assert [text.startswith(prompt) for text, prompt in zip(generated, prompts, strict=True)] == [True] * 3
        found.append([generated, [np.asarray(each) for each in history.values()], model.get_weights()])
    assert found[0][0] == found[1][0]
    assert model.generate(prompts[0]).startswith(prompts[0])
    model.save_to_preset(str(tmp_path / "preset"))
    opened = keras_hub.models.CausalLM.from_preset(str(tmp_path / "preset"))
    opened.compile(sampler=keras_hub.samplers.TopKSampler(k=5, seed=3), jit_compile=False)
    assert opened.generate(prompts) == generated
    assert difference(found[0][1], found[1][1]) <= LIMIT
    assert difference(found[0][2], found[1][2]) <= LIMIT


@pytest.mark.parametrize("way", ["LoRA", "QLoRA"])
def test_frozen_weights_cost_no_gradients_and_no_slots(way: str) -> None:
    plain = tasks.build("Llama", way)
    trained, held = _bytes(plain.trainable_variables), _bytes(plain.weights)
    # Two adapters each of the queries and the values of two layers.
    assert len(plain.trainable_variables) == 8
    assert trained < held / 7
    # Adam holds its count of steps and its learning rate besides two slots for each weight.
    scalars = 8 + 4
    found = {}
    for mesh in ("data=2", "shard=weights", "tensor=2"):
        with strategy_of(mesh).scope():
            model = tasks.build("Llama", way)
            if "tensor" in mesh:
                model = keras_ext.parallelize(model)
            tasks.compile_task(model)
            model.optimizer.build(model.trainable_variables)
        report = keras_ext.memory_report(model)
        found[mesh] = [list(each.values()) for each in (report.weights, report.gradients, report.slots)]
    assert found["data=2"] == [[held] * 2, [trained] * 2, [2 * trained + scalars] * 2]
    for mesh in ("shard=weights", "tensor=2"):
        weights, gradients, slots = found[mesh]
        assert sum(gradients) == trained
        assert 2 * trained < sum(slots) <= 2 * (trained + scalars)
        assert max(weights) < 0.55 * held


def _bytes(variables: list[Any]) -> int:
    return sum(np.asarray(each).nbytes for each in variables)
