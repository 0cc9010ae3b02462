"""Every public class has an example in its docstring, and all examples run."""

from __future__ import annotations

import inspect
import pathlib
import re
import textwrap
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies.testing import faults

#: Their programs run in several processes, or change the process; they are only parsed here.
NOT_IN_THIS_PROCESS = frozenset(
    {"strategies.HorovodStrategy", "strategies.MultiWorkerMirroredStrategy", "strategies.exact"}
)

PUBLIC = {
    f"{module.__name__}.{name}": getattr(module, name)
    for module in (keras_ext, strategies, faults)
    for name in module.__all__
}
CLASSES = {name: value for name, value in PUBLIC.items() if inspect.isclass(value)}


def examples_of(documented: Any) -> list[str]:
    """Returns the code of each section "Example" of a docstring."""
    found = re.findall(r"^Example[^\n]*:\n\n((?:    .*\n|\n)+)", f"{inspect.getdoc(documented)}\n", flags=re.MULTILINE)
    return [textwrap.dedent(code) for code in found]


EXAMPLES = {name: code for name, value in PUBLIC.items() for code in examples_of(value)}


@pytest.mark.parametrize("name", CLASSES)
def test_a_public_class_has_an_example(name: str) -> None:
    assert examples_of(CLASSES[name]), f"{name} has no section 'Example' in its docstring."


@pytest.mark.parametrize("name", EXAMPLES)
def test_an_example_runs(name: str, tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    if "import keras_hub" in EXAMPLES[name]:
        pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")
    code = compile(EXAMPLES[name], f"<example of {name}>", "exec")
    if name not in NOT_IN_THIS_PROCESS:
        monkeypatch.chdir(tmp_path)
        exec(
            code,
            {"faults": faults, "keras": keras, "keras_ext": keras_ext, "np": np, "strategies": strategies, "tf": tf},
        )
