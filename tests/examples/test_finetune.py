"""The fine-tuning example: the numbers of one device on a mesh, resuming, its files in plain KerasHub, refusals."""

from __future__ import annotations

import csv
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from common.options import OptionError
from finetune import documents, small_preset, train
from finetune.options import Options, check
from gpt import hub, rows
from gpt.backbone import as_inputs
from gpt.text import Text

keras_hub = pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")

PIECE = "Peter Piper picked a peck of pickled peppers; where is the peck of pickled peppers? "
TEXT = Text((PIECE.encode() * 12,), "a test")
OPTIONS = Options(
    sequence_length=8, batch_size=4, epochs=2, learning_rate=1e-2, warmup_steps=2, sample_length=16, verbose=0
)

# Warnings from KerasHub's layers.
pytestmark = [pytest.mark.filterwarnings("ignore::UserWarning"), pytest.mark.timeout(300)]


def make_preset(folder: Path, dropout: float = 0.0) -> str:
    """Writes a preset with random weights."""
    keras.utils.set_random_seed(1)
    tokenizer = hub.learnt_tokenizer(TEXT, 280)
    backbone = keras_hub.models.GPT2Backbone(280, 1, 2, 16, 32, dropout=dropout, max_sequence_length=16)
    for weight in backbone.weights:
        if weight.name in ("kernel", "embeddings"):
            # Large enough for adapters to matter.
            weight.assign(8 * weight)
    hub.save_preset(str(folder), backbone, tokenizer, 16)
    return str(folder)


def losses(run_dir: Path) -> list[list[float]]:
    with (run_dir / "history.csv").open() as file:
        return [[float(line[name]) for name in ("loss", "val_loss")] for line in csv.DictReader(file)]


def val_loss(task: Any, preset: str) -> float:
    """Returns the loss of the held-out rows, in plain Keras."""
    task.preprocessor = None
    _, held_out = rows.split(train.packed(preset, TEXT), OPTIONS.sequence_length)
    assert held_out is not None
    return float(task.evaluate(as_inputs(rows.in_order(held_out, 4)), verbose=0, return_dict=True)["loss"])


@pytest.mark.parametrize(
    ("placing", "ways"),
    [
        ({"mesh": "data=2", "shard": "weights"}, {"lora_rank": 2}),
        pytest.param({"mesh": "data=2"}, {"lora_rank": 2, "quantize": "int8"}, marks=pytest.mark.parity_all),
        pytest.param({"mesh": "tensor=2"}, {"lora_rank": 2, "quantize": "int8"}, marks=pytest.mark.parity_all),
        pytest.param({"mesh": "data=2,tensor=2"}, {}, marks=pytest.mark.parity_all),
    ],
    ids=str,
)
def test_trains_goes_on_and_saves(placing: dict[str, Any], ways: dict[str, Any], tmp_path: Path) -> None:
    preset = make_preset(tmp_path / "a preset")
    options = replace(OPTIONS, preset=preset, **ways)
    alone = train.run(replace(options, run_dir=str(tmp_path / "alone")), TEXT)
    adapters = str(tmp_path / "adapters.lora.h5") if ways else None
    several = replace(options, run_dir=str(tmp_path / "several"), save_adapters=adapters, **placing)
    found = train.run(several, TEXT)
    checkpoints = tmp_path / "several" / "checkpoints"
    for path in checkpoints.glob(max(checkpoints.glob("*.json")).with_suffix(".*").name):
        path.unlink()
    # Resumed after its first epoch.
    again = train.run(several, TEXT)
    assert alone.samples == found.samples == again.samples
    assert alone.before == pytest.approx(again.before, rel=1e-6)
    np.testing.assert_allclose(losses(tmp_path / "several"), losses(tmp_path / "alone"), rtol=1e-6)
    last = losses(tmp_path / "alone")[-1][1]
    before = alone.before["loss"]
    assert abs(last - before) > 1e-3
    tuned = str(tmp_path / "several" / "preset")
    task = keras_hub.models.CausalLM.from_preset(tuned)
    task.compile(sampler="greedy")
    assert task.generate("Peter", max_length=16).startswith("Peter")
    # The kernels of a quantized preset are quantized again, with the adapters in them.
    assert val_loss(task, tuned) == pytest.approx(last, rel=1e-2 if "quantize" in ways else 1e-6)
    if adapters is not None and "quantize" not in ways:
        task = keras_hub.models.CausalLM.from_preset(preset)
        task.backbone.load_lora_weights(adapters)
        # Without the biases of the adapted layers, which KerasHub trains and leaves out of this file.
        assert abs(val_loss(task, preset) - last) < abs(before - last)


def test_the_small_preset_is_trained_once(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    tiny = {"units": 8, "num_heads": 2, "num_layers": 1, "sequence_length": 16, "epochs": 1, "steps_per_epoch": 1}
    monkeypatch.setattr(small_preset, "TRAINING", {**small_preset.TRAINING, **tiny})
    options = replace(OPTIONS, mesh="data=2", epochs=1)
    first = train.run(options, TEXT)
    made = (tmp_path / "runs" / "small_gpt2" / "model.weights.h5").stat().st_mtime_ns
    second = train.run(replace(options, run_dir="elsewhere"), TEXT)
    assert (tmp_path / "runs" / "small_gpt2" / "model.weights.h5").stat().st_mtime_ns == made
    # The same numbers, whether the preset was trained in this process or before it.
    assert (first.before, first.samples) == (second.before, second.samples)
    assert first.outcome.history["loss"] == second.outcome.history["loss"]
    assert (tmp_path / "elsewhere" / "preset" / "config.json").is_file()


def test_documents(tmp_path: Path) -> None:
    (tmp_path / "b").mkdir()
    (tmp_path / "b" / "two.txt").write_text("two")
    (tmp_path / "one.txt").write_text("one")
    (tmp_path / "binary").write_bytes(b"\xff\xfe")
    (tmp_path / ".hidden").write_text("hidden")
    (tmp_path / "empty").write_text(" \n")
    assert documents.load(str(tmp_path)).documents == (b"two", b"one")
    (tmp_path / "one.txt").write_text("one<|endoftext|>two")
    assert documents.load(str(tmp_path / "one.txt")).documents == (b"one", b"two")
    for path, reason in (("binary", "not UTF-8"), ("empty", "no text in it"), ("nowhere", "cannot be read")):
        with pytest.raises(OptionError, match=rf"{path}: .*{reason}.*--text"):
            documents.load(str(tmp_path / path))
    assert documents.load().num_bytes > 10_000


@pytest.mark.parametrize(
    ("wrong", "message"),
    [
        ({"quantize": "int8"}, "--quantize=int8 needs --lora_rank"),
        ({"preset": "nowhere"}, "--preset=nowhere: expected a folder that save_to_preset has written"),
        ({"save_adapters": "a.lora.h5"}, "--save_adapters needs --lora_rank"),
        ({"save_adapters": "a.h5", "lora_rank": 1}, r"--save_adapters=a\.h5: expected a file that ends in \.lora\.h5"),
        ({"save": "."}, r"--save=\.: it exists and is not a preset"),
    ],
)
def test_refuses_at_once(wrong: dict[str, Any], message: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(tmp_path)
    with pytest.raises(OptionError, match=message):
        check(replace(OPTIONS, **wrong))


def test_refuses_presets(tmp_path: Path) -> None:
    options = replace(OPTIONS, preset=make_preset(tmp_path / "preset"), run_dir=str(tmp_path / "run"))
    with pytest.raises(OptionError, match=r"--sequence_length=17: --preset=.* takes 16 at most"):
        train.run(replace(options, sequence_length=17), TEXT)
    folder = tmp_path / "neox"
    keras_hub.models.GPTNeoXCausalLM(
        keras_hub.models.GPTNeoXBackbone(280, 1, 2, 16, 32),
        keras_hub.models.GPTNeoXCausalLMPreprocessor(keras_hub.models.GPTNeoXTokenizer(*_of_gpt2(tmp_path / "preset"))),
    ).save_to_preset(str(folder))
    with pytest.raises(OptionError, match="--lora_rank=2: no layer of GPTNeoXBackbone is among those"):
        train.run(replace(options, preset=str(folder), lora_rank=2), TEXT)


def _of_gpt2(preset: Path) -> tuple[Any, Any]:
    tokenizer = keras_hub.models.Tokenizer.from_preset(str(preset))
    return dict(tokenizer.vocabulary), list(tokenizer.merges)
