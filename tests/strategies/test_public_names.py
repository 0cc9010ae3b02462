"""The public names of `strategies`: what type checkers read is what programs get, and nothing is imported early."""

from __future__ import annotations

import ast
import importlib
import subprocess
import sys
from pathlib import Path

import pytest

import strategies
from tests.processes import ROOT


def in_stub() -> dict[str, str]:
    """Returns the module of each name in the stub."""
    tree = ast.parse(Path(strategies.__file__).with_suffix(".pyi").read_text())
    return {
        alias.name: str(node.module) for node in tree.body if isinstance(node, ast.ImportFrom) for alias in node.names
    }


def test_the_stub_has_the_names_and_modules_of_the_package() -> None:
    table = vars(strategies)
    assert in_stub() == table["_MODULES"] | dict.fromkeys(table["_SUBMODULES"], "strategies")
    assert sorted(in_stub()) == strategies.__all__
    assert set(strategies.__all__) <= set(dir(strategies))


@pytest.mark.parametrize("name", strategies.__all__)
def test_each_name_is_found(name: str) -> None:
    module = in_stub()[name]
    if module == "strategies":
        assert getattr(strategies, name) is importlib.import_module(f"strategies.{name}")
    else:
        assert getattr(strategies, name) is getattr(importlib.import_module(module), name)


@pytest.mark.parametrize("name", ["Mirrored", "topology_of"])
def test_another_name_is_an_error(name: str) -> None:
    with pytest.raises(AttributeError, match=f"module 'strategies' has no attribute '{name}'"):
        getattr(strategies, name)


def test_tensorflow_is_imported_on_first_use() -> None:
    program = "import sys, strategies; strategies.DeviceMesh; sys.exit('tensorflow' in sys.modules)"
    subprocess.run([sys.executable, "-c", program], check=True, cwd=ROOT, timeout=250)
