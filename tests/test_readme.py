"""The README: short, with a diff whose two sides train the same weights, and the commands to start with."""

from __future__ import annotations

import os
import subprocess
from pathlib import Path

import keras
import numpy as np

from tests.docs.pages import ROOT, blocks, text_of
from tests.processes import python

README = text_of("README.md")
[DIFF] = [block.code.splitlines() for block in blocks(README) if block.language == "diff"]
#: The program has two replicas then.
_TWO_DEVICES = """
import tensorflow as tf

cpu = tf.config.list_physical_devices("CPU")[0]
tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
"""


def test_it_is_short() -> None:
    assert len(README.splitlines()) <= 100
    assert sum(line.startswith("+") for line in DIFF) <= 5


def test_it_names_the_first_commands() -> None:
    commands = {line for block in blocks(README) for line in block.code.splitlines()}
    assert {"make mnist", "make test"} <= commands
    assert any(line.startswith("pip install ") for line in commands)


def test_both_sides_of_the_diff_train_the_same_weights(tmp_path: Path) -> None:
    before = [line[1:] for line in DIFF if not line.startswith("+")]
    after = [line[1:] for line in DIFF if not line.startswith("-")]
    plain, replicated = (_trained("\n".join(lines), tmp_path / name) for lines, name in ((before, "a"), (after, "b")))
    for weight, other in zip(plain.get_weights(), replicated.get_weights(), strict=True):
        np.testing.assert_allclose(other, weight, rtol=0, atol=1e-6)


def _trained(program: str, folder: Path) -> keras.Model:
    """Runs a side of the diff with two devices, and returns the model that it saves."""
    folder.mkdir()
    environment = os.environ | {"PYTHONPATH": str(ROOT), "TF_CPP_MIN_LOG_LEVEL": "3"}
    code = _TWO_DEVICES + program
    done = subprocess.run(python("-c", code), cwd=folder, env=environment, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    return keras.models.load_model(folder / "model.keras")
