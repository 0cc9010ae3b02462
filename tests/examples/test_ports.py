"""The ported programs as users start them, with two processes, and the differences that their page shows."""

import os
import re
import sys
from pathlib import Path

import keras
import pytest

from tests.examples import EXAMPLES
from tests.processes import Programs, horovodrun, launcher, python

PORTS = EXAMPLES / "ports"
LIMIT_SECONDS = 400

pytestmark = pytest.mark.timeout(LIMIT_SECONDS + 60)


@pytest.fixture(autouse=True)
def _no_other_launcher(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    for name in [name for name in os.environ if re.match(r"TF_CONFIG|HOROVOD_|OMPI_|SLURM_", name)]:
        monkeypatch.delenv(name)
    # An empty Keras cache, so that the digits are those of scikit-learn.
    monkeypatch.setenv("KERAS_HOME", str(tmp_path / "keras"))


def finished(folder: Path, command: list[str]) -> str:
    """Returns the output of a command that succeeds in time; kills everything that it has started."""
    with Programs(folder, [command]) as programs:
        codes = programs.wait(LIMIT_SECONDS)
        output = programs.output(limit=40000)
    assert codes == [0], output
    assert "Traceback" not in output
    return output


def only(pattern: str, output: str) -> float:
    """Returns the number in the one matching line: ranks other than 0 print nothing."""
    [number] = re.findall(pattern, output)
    return float(number)


def test_multi_worker_keras(tmp_path: Path) -> None:
    results = tmp_path / "a folder"
    program = [str(PORTS / "multi_worker_keras.py"), "--epochs=2", f"--run_dir={results}"]
    output = finished(tmp_path, launcher(2, program))
    assert only(r"result test_accuracy=(\S+) test_loss=\S+ replicas=2\n", output) > 0.3
    assert output.count("Epoch 2/2") == 1
    # The other process' checkpoint and the backup have been deleted.
    assert sorted(path.name for path in results.iterdir()) == ["checkpoint", "model.keras"]
    assert (results / "checkpoint" / "ckpt-1.index").is_file()
    assert keras.models.load_model(results / "model.keras").count_params() > 0


def test_horovod_keras_mnist(tmp_path: Path) -> None:
    results = tmp_path / "checkpoints"
    program = [str(PORTS / "horovod_keras_mnist.py"), "--epochs=3", f"--run_dir={results}"]
    output = finished(tmp_path, horovodrun(2, program))
    assert only(r"result test_accuracy=(\S+) test_loss=\S+ processes=2\n", output) > 0.7
    assert output.count("Epoch 3/3") == 1
    assert only(r"Epoch 3: the learning rate has warmed up to (\S+)\.\n", output) == 0.002
    assert [float(rate) for rate in re.findall(r"learning_rate: (\S+)", output)] == [0.0013, 0.0017, 0.002]
    assert sorted(path.name for path in results.iterdir()) == [f"checkpoint-{epoch}.keras" for epoch in (1, 2, 3)]


@pytest.mark.parametrize(
    "name", ["multi_worker_keras.py", pytest.param("horovod_keras_mnist.py", marks=pytest.mark.parity_all)]
)
def test_one_process_in_a_clone_with_nothing_installed(name: str, tmp_path: Path) -> None:
    # Makes Python ignore PYTHONPATH.
    output = finished(tmp_path, [sys.executable, "-E", str(PORTS / name), "--epochs=1"])
    assert only(r"result test_accuracy=\S+ test_loss=\S+ (?:replicas|processes)=(\d)\n", output) == 1


def test_refuses_a_wrong_folder_in_one_line(tmp_path: Path) -> None:
    command = python(str(PORTS / "multi_worker_keras.py"), "--data_dir=nowhere")
    with Programs(tmp_path, [command]) as programs:
        assert programs.wait(LIMIT_SECONDS) == [1]
        assert "error: nowhere: not a directory" in programs.output()


@pytest.mark.parametrize(
    "strategy", ["MultiWorkerMirroredStrategy", pytest.param("HorovodStrategy", marks=pytest.mark.parity_all)]
)
def test_the_loop_on_the_page(strategy: str, tmp_path: Path) -> None:
    [code] = re.findall(r"```python\n(.*?)```", (PORTS / "README.md").read_text(), flags=re.DOTALL)
    program = tmp_path / "loop.py"
    program.write_text(code.replace("MultiWorkerMirroredStrategy", strategy))
    command = horovodrun(2, [str(program)]) if strategy == "HorovodStrategy" else launcher(2, [str(program)])
    losses = [float(loss) for loss in re.findall(r"loss (\S+)", finished(tmp_path, command))]
    # Five steps; both ranks print the same.
    assert len(losses) == 10
    assert len(set(losses)) == 5
    assert min(losses) < max(losses) / 2
