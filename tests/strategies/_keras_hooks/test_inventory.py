"""A new Keras or TensorFlow that changed what the hooks rely on fails here, by name."""

from __future__ import annotations

import inspect
import json
import os
import re
import subprocess
import sys
import tomllib
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from keras.src.backend.tensorflow.trainer import TFEpochIterator

from strategies import _tf_internals
from tests.processes import ROOT

INVENTORY = tomllib.loads(Path(__file__).with_name("inventory.toml").read_text())


def signature(value: Any) -> str:
    """The signature as text; of what has none, its kind."""
    if inspect.ismodule(value):
        return "module"
    if not callable(value):
        return type(value).__name__
    text = re.sub(r"<class '([^']+)'>", r"\1", str(inspect.signature(value)))
    return re.sub(r"<(UnconnectedGradients\.\w+): '\w+'>", r"\1", text)


def changes(known: Any, found: Any) -> list[str]:
    """One line for each name that is gone, new or changed."""
    lines = [f"{name} is gone" for name in known if name not in found]
    lines += [f"{name}{found[name]} is not in inventory.toml" for name in found if name not in known]
    return lines + [
        f"{name} was {known[name]}, is {found[name]}" for name in known if found.get(name, known[name]) != known[name]
    ]


# In a process of its own: other tests have replaced functions, and trained, which wraps further ones.
_PRINT_WRAPPED = """
import json, strategies
from strategies._keras_hooks import wrapping
from tests.strategies._keras_hooks.test_inventory import signature
strategies.MirroredStrategy(["CPU:0"])
print(json.dumps({name: signature(original) for name, original in wrapping.originals().items()}))
"""


def test_functions_that_are_wrapped() -> None:
    environment = os.environ | {"PYTHONPATH": str(ROOT)}
    output = subprocess.check_output([sys.executable, "-c", _PRINT_WRAPPED], env=environment, cwd=ROOT, text=True)
    found = json.loads(output.splitlines()[-1])
    assert not changes(INVENTORY["wrapped"], found), "\n".join(changes(INVENTORY["wrapped"], found))


def test_names_that_are_imported_from_tensorflow() -> None:
    found = {name: signature(getattr(_tf_internals, name)) for name in _tf_internals.__all__}
    assert not changes(INVENTORY["imported"], found), "\n".join(changes(INVENTORY["imported"], found))


def test_a_changed_name_is_named() -> None:
    assert changes({"a": "(x)", "b": "()", "c": "()"}, {"a": "(x, y)", "c": "()", "d": "()"}) == [
        "b is gone",
        "d() is not in inventory.toml",
        "a was (x), is (x, y)",
    ]


def _objects() -> dict[str, Any]:
    model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    optimizer = keras.optimizers.SGD(gradient_accumulation_steps=2)
    model.compile(optimizer, "mse")
    model.fit(np.ones((2, 2)), np.ones((2, 1)), verbose=0)
    scaled = keras.optimizers.LossScaleOptimizer(keras.optimizers.SGD())
    iterator = TFEpochIterator(x=np.ones((2, 2)), distribute_strategy=model.distribute_strategy)
    return {
        "optimizer": optimizer,
        "loss scale optimizer": scaled,
        "model": model,
        "layer": model.layers[0],
        "epoch iterator": iterator,
        "gradient registry": _tf_internals.gradient_registry,
    }


def test_attributes_that_are_read_or_set() -> None:
    found = _objects()
    missing = [
        f"{kind}.{name}"
        for kind, names in INVENTORY["attributes"].items()
        for name in names
        if not hasattr(found[kind], name)
    ]
    assert not missing


@pytest.mark.parametrize("module", INVENTORY["called"])
def test_functions_of_modules(module: str) -> None:
    for name in INVENTORY["called"][module]:
        assert callable(getattr(getattr(_tf_internals, module), name)), name
