"""The language model of a KerasHub backbone: its curve on a mesh, resuming, its file, presets, and refusals."""

from __future__ import annotations

import csv
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from common.options import OptionError
from gpt import train
from gpt.options import Options
from gpt.text import load

from tests.examples.test_gpt_spanning import SMALL, TEXT
from tests.processes import python

keras_hub = pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

MODEL = Options(**(SMALL | {"num_layers": 2}), backbone="GemmaBackbone")
COMPARES_ALONE = """
import os, sys
os.environ.update(KERAS_BACKEND="tensorflow", CUDA_VISIBLE_DEVICES="-1")
# An import of them fails.
sys.modules["strategies"] = sys.modules["keras_ext"] = sys.modules["common"] = sys.modules["gpt"] = None
import keras, keras_hub, numpy
from tests.processes import python
one, several = map(keras.models.load_model, sys.argv[1:])
for weight, same in zip(one.get_weights(), several.get_weights(), strict=True):
    numpy.testing.assert_allclose(same, weight, rtol=0, atol=1e-5)
tokens = numpy.arange(16).reshape(2, 8) % 7
x = {"token_ids": tokens, "padding_mask": numpy.ones_like(tokens)}
numpy.testing.assert_allclose(several.predict(x, verbose=0), one.predict(x, verbose=0), rtol=0, atol=1e-4)
print(sorted({layer.__class__.__module__.partition(".")[0] for layer in several._flatten_layers()}))
"""

# Warnings from KerasHub's layers.
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.timeout(300)]


@pytest.fixture
def files(tmp_path: Path) -> Options:
    (tmp_path / "text").write_bytes(TEXT)
    return replace(MODEL, data_file=str(tmp_path / "text"), run_dir=str(tmp_path / "run"))


def losses(run_dir: Any) -> list[list[float]]:
    with (Path(run_dir) / "history.csv").open() as file:
        return [[float(line[name]) for name in ("loss", "val_loss")] for line in csv.DictReader(file)]


@pytest.mark.parametrize("mesh", ["data=2,tensor=2", pytest.param("pipe=2,tensor=2", marks=pytest.mark.parity_all)])
def test_trains_goes_on_and_saves(mesh: str, files: Options, tmp_path: Path) -> None:
    # Replicas need no second block.
    files = files if "pipe" in mesh else replace(files, num_layers=1)
    text = load(files.data_file)
    one, several = str(tmp_path / "one.keras"), str(tmp_path / "several.keras")
    alone = train.run(replace(files, run_dir=str(tmp_path / "alone"), save=one), text)
    # Resumed, with the same options, after its first epoch.
    found = train.run(replace(files, mesh=mesh, save=several), text)
    for path in (tmp_path / "run" / "checkpoints").glob("*000000006*"):
        path.unlink()
    again = train.run(replace(files, mesh=mesh, save=several), text)
    assert alone.sample == found.sample == again.sample
    np.testing.assert_allclose(losses(tmp_path / "run"), losses(tmp_path / "alone"), rtol=1e-5)
    done = subprocess.run(
        python("-c", COMPARES_ALONE, one, several), cwd=tmp_path, capture_output=True, text=True, timeout=250
    )
    assert done.stdout.endswith("['keras', 'keras_hub']\n"), done.stderr


def test_a_preset(files: Options, tmp_path: Path) -> None:
    keras.utils.set_random_seed(1)
    # A name with a space.
    folder = tmp_path / "a preset"
    backbone = keras_hub.models.GPT2Backbone(300, 1, 2, 16, 32, dropout=0.0, max_sequence_length=12)
    backbone.save_to_preset(str(folder))
    options = replace(files, backbone=str(folder), epochs=1, steps_per_epoch=1, learning_rate=0.0, save=None)
    result = train.run(options, load(files.data_file))
    assert result.perplexity > 100
    with pytest.raises(OptionError, match=r"--sequence_length=13: --backbone=.*a preset takes 12 at most"):
        train.run(replace(options, sequence_length=13, run_dir=None), load(files.data_file))
    with pytest.raises(OptionError, match="has no tokenizer that can be read"):
        train.run(replace(options, tokenizer="preset", run_dir=None), load(files.data_file))


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("Gpt2Backbone", r"--backbone=Gpt2Backbone: expected a folder, or one of KerasHub's decoders: .*GPT2Backbone"),
        ("BertBackbone", r"not a decoder that takes tokens only. Received: BertBackbone with inputs .*segment_ids"),
        ("MixtralBackbone", r"there is no flag for its num_experts\. Make it in Python, write it by save_to_preset"),
    ],
)
def test_refuses(name: str, message: str, files: Options) -> None:
    with pytest.raises(OptionError, match=message):
        train.run(replace(files, backbone=name, run_dir=None), load(files.data_file))
