"""The language model with mixtures of experts: meshes with the axis "expert", the load in the logs, files, refusals."""

import csv
import subprocess
from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
from common.options import OptionError
from gpt import train
from gpt.options import Options, check
from gpt.text import Text

import keras_ext
from tests.examples import EXAMPLES
from tests.examples.test_gpt_train import NUM_STEPS, SMALL, TEXT, trained
from tests.processes import python

EXPERTS = replace(SMALL, num_experts=4, epochs=1)
LOAD = "block_0_ffn_load"
MAIN = EXAMPLES / "gpt" / "main.py"


@pytest.fixture(scope="module")
def alone() -> tuple[Any, list[float], Any]:
    """Returns model, losses and history of one device."""
    return trained({"data": 1}, EXPERTS)


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize(
    "axes",
    [
        {"expert": 2},
        pytest.param({"data": 2}, marks=pytest.mark.parity_all),
        pytest.param({"data": 2, "expert": 2}, marks=pytest.mark.parity_all),
        pytest.param({"expert": 2, "tensor": 2}, marks=pytest.mark.parity_all),
    ],
    ids=lambda axes: ",".join(f"{k}={v}" for k, v in axes.items()),
)
def test_every_mesh_gives_the_loss_curve_and_the_load_of_one_device(axes: Mapping[str, int], alone: Any) -> None:
    _, losses, history = alone
    _, same, same_history = trained(axes, EXPERTS)
    assert len(losses) == NUM_STEPS
    assert losses[-1] < losses[0] / 1.3
    np.testing.assert_allclose(same, losses, rtol=0, atol=1e-5)
    assert sorted(history) == sorted(same_history) == [LOAD, "loss", "perplexity"]
    assert 1 < history[LOAD][0] < 2
    assert same_history[LOAD] == history[LOAD]


@pytest.mark.timeout(200)
def test_the_command_line_trains_saves_and_goes_on(tmp_path: Path) -> None:
    folder, saved = tmp_path / "run", tmp_path / "experts.keras"
    (tmp_path / "text").write_bytes(TEXT)
    names = ("sequence_length", "batch_size", "units", "num_layers", "num_heads", "learning_rate", "warmup_steps")
    flags = [f"--{name}={getattr(SMALL, name)}" for name in names]
    flags += ["--num_experts=4", "--epochs=2", "--steps_per_epoch=3", "--sample_length=8", "--temperature=0"]
    flags += [f"--data_file={tmp_path / 'text'}", "--verbose=0"]
    several = [*flags, f"--run_dir={folder}", "--mesh=expert=2", f"--save={saved}"]
    done = subprocess.run(python(str(MAIN), *several), cwd=EXAMPLES.parent, capture_output=True, text=True, timeout=250)
    assert done.returncode == 0, done.stderr
    assert "devices=2" in done.stdout.splitlines()[-1]
    # TensorBoard has the load in training and validation, and the share of each expert.
    for part in ("train", "validation"):
        (events,) = (folder / "tensorboard" / part).glob("events.out.tfevents.*")
        assert f"epoch_{LOAD}".encode() in events.read_bytes()
        assert all(f"expert_load/block_0_ffn/{expert}".encode() in events.read_bytes() for expert in range(4))
    # The file is a model of Keras' own layers, and trains further with sparse ones.
    plain = keras.models.load_model(saved)
    assert all(type(layer).__module__.startswith("keras.") for layer in plain._flatten_layers())
    sparse = keras_ext.replace_experts(plain)
    tokens = np.arange(24).reshape(2, 12) % 7
    np.testing.assert_allclose(sparse(tokens), plain(tokens), atol=1e-5)
    # The run resumes from the checkpoint of its first epoch, on one device, with the same numbers.
    with (folder / "history.csv").open() as file:
        before = list(csv.DictReader(file))
    last = list((folder / "checkpoints").glob("step-000000006*"))
    assert last
    for path in last:
        path.unlink()
    numbers = {name: getattr(SMALL, name) for name in names}
    options = Options(
        **numbers,
        num_experts=4,
        epochs=2,
        steps_per_epoch=3,
        sample_length=8,
        temperature=0.0,
        data_file=str(tmp_path / "text"),
        run_dir=str(folder),
        verbose=0,
    )
    again = train.run(options, Text((TEXT,), "test"))
    assert again.sample is not None
    assert f"sample:\n{again.sample}\n" in done.stdout
    for name in ("loss", "val_loss", LOAD, f"val_{LOAD}"):
        found = [float(row[name]) for row in before]
        np.testing.assert_allclose(again.outcome.history[name], found, rtol=1e-5, err_msg=name)


def test_the_load_is_that_of_all_choices() -> None:
    layer = keras_ext.MixtureOfExperts(4, 3, 1, load_balancing_loss=0.0, name="experts")
    model = keras.Sequential([keras.Input((2,)), layer])
    weights = [weight.shape for weight in model.weights]
    keras_ext.track_expert_load(model)
    # Called again, it changes nothing.
    keras_ext.track_expert_load(model)
    layer.layers[0].kernel.assign([[1, 0, 0, 0], [0, 1, 0, 0]])
    model.compile(keras.optimizers.SGD(0.0), "mse")
    x = np.array([[1, 0]] * 5 + [[0, 1]] * 3, "float32")
    assert model.fit(x, x, batch_size=3, epochs=2, verbose=0).history["experts_load"] == [4 * 5 / 8] * 2
    assert model.evaluate(x[4:], x[4:], return_dict=True, verbose=0)["experts_load"] == 4 * 3 / 4
    assert [weight.shape for weight in model.weights] == weights
    with pytest.raises(ValueError, match=r"there is no keras_ext\.MixtureOfExperts.*Received: 'dense'"):
        keras_ext.track_expert_load(keras.Sequential([keras.layers.Dense(1)], name="dense"))


@pytest.mark.parametrize(
    ("change", "reason"),
    [
        ({"top_k": 5}, "--top_k=5 must be at most --num_experts=4"),
        (
            {"backbone": "GPT2Backbone"},
            "--num_experts=4 is for the built-in decoder. Leave out --backbone=GPT2Backbone",
        ),
    ],
)
def test_refuses_options(change: dict[str, Any], reason: str) -> None:
    with pytest.raises(OptionError, match=reason):
        check(replace(EXPERTS, **change))


def test_refuses_experts_that_cannot_be_sharded(tmp_path: Path) -> None:
    options = replace(EXPERTS, num_experts=3, mesh="expert=2", run_dir=str(tmp_path))
    with pytest.raises(OptionError, match="--num_experts=3 must be a multiple of 2, the size of the mesh axis expert"):
        train.run(options, Text((TEXT,), "test"))
