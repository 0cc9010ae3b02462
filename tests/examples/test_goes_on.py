"""A program that is killed and restarted with the same command has the loss curve of an uninterrupted run."""

from __future__ import annotations

import csv
import re
import time
from collections.abc import Sequence
from pathlib import Path

import psutil
import pytest

from tests.examples import EXAMPLES
from tests.processes import Programs, launcher, python

GPT = [
    "gpt/main.py",
    "--units=32",
    "--num_layers=1",
    "--sequence_length=32",
    "--batch_size=4",
    "--steps_per_epoch=10",
    "--dropout=0.1",
    "--sample_length=0",
]
IMAGENET = [
    "imagenet/main.py",
    "--model=AlexNet",
    "--width=0.05",
    "--dropout=0.1",
    "--image_size=16",
    "--batch_size=32",
    "--warmup_epochs=1",
]
MNIST = ["mnist/main.py", "--batch_size=128", "--dropout=0.1"]
RECOMMENDER = ["recommender/main.py", "--num_ratings=8000", "--batch_size=1024", "--embedding_dim=8"]


def _command(program: Sequence[str], run_dir: Path, num_processes: int = 1) -> list[str]:
    main, *options = program
    common = ["--epochs=3", "--checkpoint_steps=4", f"--run_dir={run_dir}", "--verbose=2"]
    command = [str(EXAMPLES / main), *options, *common]
    if num_processes == 1:
        return python(*command)
    return launcher(num_processes, [*command, "--strategy=multi_worker"])


def _finish(folder: Path, command: list[str]) -> str:
    with Programs(folder, [command]) as programs:
        codes = programs.wait(240)
        output = programs.output(20000)
    assert codes == [0], output
    assert output.count("result ") == 1, output
    return output


def _kill_when(checkpoint: Path, folder: Path, command: list[str], seconds_later: float = 0.0) -> None:
    """Kills the program, with all its descendants, when the checkpoint exists."""
    with Programs(folder, [command]) as programs:
        _wait_for(checkpoint, programs)
        time.sleep(seconds_later)


def _wait_for(path: Path, programs: Programs) -> None:
    end = time.monotonic() + 240
    while not path.exists():
        assert time.monotonic() < end, programs.output()
        assert programs.running(), programs.output()
        time.sleep(0.01)


def _curve(run_dir: Path) -> list[dict[str, float]]:
    """Returns the loss curve, without the columns that measure time."""
    with (run_dir / "history.csv").open() as file:
        return [
            {name: float(value) for name, value in row.items() if "per_second" not in name and "waiting" not in name}
            for row in csv.DictReader(file)
        ]


@pytest.mark.parity_all
@pytest.mark.parametrize(
    "program",
    [
        GPT,
        [*GPT, "--backbone=LlamaBackbone"],
        [*GPT, "--num_experts=4", "--checkpoint_form=background"],
        IMAGENET,
        MNIST,
        RECOMMENDER,
    ],
    ids=["gpt", "kerashub", "experts", "imagenet", "mnist", "recommender"],
)
def test_one_process(program: list[str], tmp_path: Path) -> None:
    calm, killed = tmp_path / "calm", tmp_path / "killed twice"
    _finish(tmp_path, _command(program, calm))
    command = _command(program, killed)
    _kill_when(killed / "checkpoints" / "step-000000004.json", tmp_path, command)
    # Some time after it: while it computes, evaluates or saves.
    _kill_when(killed / "checkpoints" / "step-000000008.json", tmp_path, command, 0.2)
    output = _finish(tmp_path, command)
    assert "resuming in" in output
    assert _curve(killed) == _curve(calm)
    if program is GPT:
        assert "already complete" in _finish(tmp_path, command)
        assert _curve(killed) == _curve(calm)


@pytest.mark.parity_all
@pytest.mark.filterwarnings("ignore::UserWarning")
def test_fine_tuning(tmp_path: Path) -> None:
    pytest.importorskip("keras_hub", reason="the extra 'hub' is not installed")
    from tests.examples.test_finetune import PIECE, make_preset

    (tmp_path / "text").write_text(PIECE * 12)
    program = ["finetune/main.py", f"--preset={make_preset(tmp_path / 'preset', 0.1)}", f"--text={tmp_path / 'text'}"]
    program += ["--lora_rank=2", "--sequence_length=8", "--batch_size=4", "--sample_length=16"]
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    expected = _finish(tmp_path, _command(program, calm))
    command = _command(program, killed)
    _kill_when(killed / "checkpoints" / "step-000000004.json", tmp_path, command)
    output = _finish(tmp_path, command)
    assert "resuming in" in output
    assert _curve(killed) == _curve(calm)
    # Times lie between the sample and the result.
    after = re.compile(r"sample after training:.*?(?=\ntrained )|^result .*? val_perplexity=\S+", re.S | re.M)
    assert after.findall(output) == after.findall(expected)
    assert len(after.findall(expected)) == 2


@pytest.mark.parity_all
@pytest.mark.parametrize("form", ["whole", "background"])
def test_a_rank_of_two(form: str, tmp_path: Path) -> None:
    calm, killed = tmp_path / "calm", tmp_path / "killed"
    _finish(tmp_path, _command(GPT, calm, 2))
    command = _command([*GPT, f"--checkpoint_form={form}"], killed, 2)
    with Programs(tmp_path, [command]) as programs:
        _wait_for(killed / "checkpoints" / "step-000000004.json", programs)
        family = psutil.Process(programs.pids[0]).children(recursive=True)
        ranks = [p for p in family if any("gpt/main.py" in word for word in p.cmdline())]
        ranks[-1].kill()
        assert programs.wait(240) != [None]
    _finish(tmp_path, command)
    # Metric sums that are distributed over ranks are restored in equal parts, which round differently.
    assert _curve(killed) == [pytest.approx(row, rel=1e-6) for row in _curve(calm)]
