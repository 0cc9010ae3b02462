"""`python examples/mnist/main.py` as a user runs it."""

import os
import re
import subprocess
from pathlib import Path

import pytest

from tests.examples import EXAMPLES
from tests.processes import Programs, horovodrun, launcher, python

MAIN = EXAMPLES / "mnist" / "main.py"


def run(arguments: list[str], tmp_path: Path) -> subprocess.CompletedProcess[str]:
    """Returns the finished program, run with an empty Keras cache, so that it uses the digits of scikit-learn."""
    environment = {**os.environ, "KERAS_HOME": str(tmp_path / "keras")}
    return subprocess.run(
        python(*arguments),
        cwd=EXAMPLES.parent,
        env=environment,
        capture_output=True,
        text=True,
        timeout=200,
        check=False,
    )


def test_trains_the_digits_of_scikit_learn(tmp_path: Path) -> None:
    save, folder = tmp_path / "digits.keras", tmp_path / "a run"
    flags = ["--devices=2", "--epochs=4", f"--save={save}", f"--run_dir={folder}"]
    done = run([str(MAIN), *flags], tmp_path)
    assert done.returncode == 0, done.stderr
    last = done.stdout.splitlines()[-1]
    match = re.fullmatch(
        r"result test_accuracy=(\S+) test_loss=\S+ images_per_second=(\d+) waiting_input=\S+ "
        r"waiting_communication=\S+ epochs=4 devices=2 seconds=\S+",
        last,
    )
    assert match, last
    assert float(match[1]) >= 0.92
    assert int(match[2]) > 0
    assert f"files    {folder}: checkpoints, " in done.stdout
    assert f"saved    {save}\n" in done.stdout
    assert "Epoch 4/4" in done.stdout
    assert "23/23" in done.stdout
    assert "data: the digits inside scikit-learn" in done.stderr
    assert "devices: no GPU found; using 2 logical CPU device(s)" in done.stderr
    assert "UserWarning" not in done.stderr
    assert save.is_file()
    assert (folder / "tensorboard" / "train").is_dir()
    assert len((folder / "history.csv").read_text().splitlines()) == 5


@pytest.mark.parametrize("strategy", ["multi_worker", pytest.param("horovod", marks=pytest.mark.parity_all)])
def test_two_processes_train_as_one_does(strategy: str, tmp_path: Path) -> None:
    save = tmp_path / "digits of two.keras"
    program = [
        str(MAIN),
        f"--strategy={strategy}",
        "--epochs=2",
        "--verbose=2",
        f"--save={save}",
        f"--run_dir={tmp_path / 'run'}",
    ]
    command = horovodrun(2, program)
    if strategy == "multi_worker":
        command = launcher(2, program)
    with Programs(tmp_path, [command], [{"KERAS_HOME": str(tmp_path / "keras")}]) as programs:
        codes = programs.wait(250)
        output = programs.output(20000)
    assert codes == [0], output
    assert output.count("result test_accuracy=") == 1
    assert output.count("Epoch 2/2") == 1
    assert "devices=2" in output
    assert [path.name for path in tmp_path.iterdir() if "digits" in path.name] == [save.name]


@pytest.mark.parametrize(
    ("flag", "reason"),
    [
        ("--data_dir=nowhere", "error: nowhere: not a directory"),
        ("--save=digits.h5", "error: --save: expected the path of a file that ends in .keras"),
        ("--devices=0", "flag --devices=0"),
        ("--strategy=ring", "flag --strategy=ring"),
        ("--mesh=rows=2", "error: --mesh: expected axes of"),
        ("digits", "Expected flags only, received ['digits']"),
    ],
)
def test_refuses_in_one_line(tmp_path: Path, flag: str, reason: str) -> None:
    done = run([str(MAIN), flag, f"--run_dir={tmp_path / 'run'}"], tmp_path)
    assert done.returncode != 0
    assert done.stdout.count("result") == 0
    assert sum(reason in line for line in (done.stderr + done.stdout).splitlines()) == 1
    assert "Traceback" not in done.stderr
