"""Plans of KerasHub's tasks equal the reports of the tasks once made; the page has a line for each model and way."""

from __future__ import annotations

import functools
import math
from pathlib import Path
from typing import Any

import pytest

pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

import keras_ext
import strategies
from tests.hub import fits

pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

PAGE = Path(__file__).parents[2] / "docs" / "guides" / "fine_tuning.md"
SIZES: dict[str, Any] = {
    "vocabulary_size": 128,
    "num_layers": 2,
    "num_query_heads": 4,
    "num_key_value_heads": 2,
    "hidden_dim": 32,
    "intermediate_dim": 128,
    "head_dim": 16,
}


@pytest.mark.parametrize(
    ("way", "mesh"),
    [
        ("LoRA", {"tensor": 2}),
        pytest.param("QLoRA", {"pipe": 2}, marks=pytest.mark.parity_all),
        pytest.param("full", {"data": 2, "tensor": 2}, marks=pytest.mark.parity_all),
    ],
    ids=str,
)
def test_a_plan_of_a_task_is_what_is_reported(way: str, mesh: dict[str, int]) -> None:
    make = functools.partial(fits.task, "Gemma", SIZES, way)
    plan = keras_ext.memory_plan(make, batch_size=8, mesh=mesh, sequence_length=16)
    made = make()
    with strategies.MirroredStrategy([f"CPU:{i}" for i in range(math.prod(mesh.values()))], mesh=mesh).scope():
        if "tensor" in mesh:
            model = keras_ext.parallelize(made)
        else:
            model = keras_ext.PipelineModel(made, partition="parameters")
        model.optimizer.build(model.trainable_variables)
    report = keras_ext.memory_report(model)
    fullest = max(report.together, key=lambda device: report.together[device])
    found = [kind.get(fullest, 0) for kind in (report.weights, report.gradients, report.slots)]
    assert [plan.weights, plan.gradients, plan.optimizer] == pytest.approx(found, rel=0.01)


def test_a_cell_has_the_first_mesh_that_fits() -> None:
    make = functools.partial(fits.task, "Gemma", SIZES, "LoRA")
    assert fits.cell(make, fits.Machine(2, 1)) == "`data=2`: 0.1"


def test_the_page_has_all_lines() -> None:
    table = PAGE.read_text().split(fits.BEGIN)[1].split(fits.END)[0]
    lines = [line.split(" | ")[:2] for line in table.splitlines()[2:]]
    assert lines == [[f"| {model}", way] for model in fits.MODELS for way in fits.WAYS]
    assert all(line.count("|") == 3 + len(fits.MACHINES) for line in table.splitlines())
