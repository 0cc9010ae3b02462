"""LoRA recipes of KerasHub on meshes: losses, frozen weights, adapters and files as in plain Keras.

``make test ARGS="tests/hub/test_lora.py --parity-all -n0"`` runs all of them.
"""

from __future__ import annotations

import functools
from pathlib import Path

import pytest

pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

from tests.hub.lora_recipes import CELLS, NAMES, Recipe
from tests.hub.parity import LIMIT

# Warnings from KerasHub's layers, and about weights that no loss depends on.
pytestmark = pytest.mark.filterwarnings("ignore::UserWarning")

DEFAULT = (("GPT2Backbone", "tensor=2"), ("BertBackbone", "pipe=2"))
ALL = [(name, cell) for name in NAMES for cell in CELLS]


@functools.cache
def recipe(name: str) -> Recipe:
    """Trains once for all meshes."""
    return Recipe(name)


def assert_equal(found: dict[str, float]) -> None:
    assert found.pop("frozen") == 0.0
    assert max(found.pop("losses"), found.pop("weights")) <= 1e-6
    # In plain Keras, predictions differ as much between batch sizes.
    assert max(found.values()) <= LIMIT, found


@pytest.mark.parametrize(
    ("name", "cell"),
    [each if each in DEFAULT else pytest.param(*each, marks=pytest.mark.parity_all) for each in ALL],
)
def test_equals_plain_keras(name: str, cell: str, tmp_path: Path) -> None:
    assert_equal(recipe(name).largest_differences(CELLS[cell], tmp_path))


@pytest.mark.parametrize("name", [pytest.param(each, marks=pytest.mark.parity_all) for each in NAMES])
def test_enabled_after_the_split(name: str, tmp_path: Path) -> None:
    assert_equal(recipe(name).largest_differences(CELLS["tensor=2"], tmp_path, after=True))
