"""`deploy/ray/mnist_ray.py` on Ray's local cluster: two workers train, and continue after one of them was killed.

Ray is in an environment of its own, which `make ray-environment` makes.
"""

from __future__ import annotations

import os
import re
import signal
import tempfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.deploy.runs import Run, assert_equal, python_with
from tests.processes import ROOT, Programs, cluster_environments, python

pytestmark = pytest.mark.timeout(900)
EPOCHS = 8
PROGRAM = ROOT / "deploy" / "ray" / "mnist_ray.py"


def program_flags(folder: Path) -> list[str]:
    """Returns the flags of the program, with Ray and without."""
    return [f"--epochs={EPOCHS}", f"--run_dir={folder / 'run'}"]


def run(folder: Path, ray_folder: str) -> Run:
    """Returns a run of two workers on this machine."""
    command = [python_with("ray"), str(PROGRAM), *program_flags(folder)]
    environment = {
        "KERAS_HOME": str(folder / "keras"),
        # Ray's sockets must have short paths.
        "RAY_TMPDIR": ray_folder,
        "RAY_USAGE_STATS_ENABLED": "0",
        # On a busy machine workers take longer to start than Ray's minute.
        "RAY_TRAIN_WORKER_GROUP_START_TIMEOUT_S": "240",
        # Else Ray leaves out lines that resemble those of other workers.
        "RAY_DEDUP_LOGS": "0",
    }
    return Run(folder, command, environment)


def result(log: str) -> dict[str, float]:
    """Returns the last logs, which rank 0 prints; Ray writes the name of the worker before it."""
    # A set: Ray shows what a worker prints up to twice.
    [line] = set(re.findall(r"(?:^| )result (accuracy=.*)", log, re.MULTILINE))
    return {name: float(value) for name, value in (word.split("=") for word in line.split())}


def processes(job: Run) -> list[tuple[int, int]]:
    """Returns ranks and process ids that the output names, in order."""
    found = re.findall(r"rank (\d): process (\d+) starts", job.log)
    return list(dict.fromkeys((int(rank), int(pid)) for rank, pid in found))


@pytest.fixture
def ray_folder() -> Iterator[str]:
    """Yields a folder for Ray's sockets, which must have short paths."""
    with tempfile.TemporaryDirectory(prefix="ray") as folder:
        yield folder


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> dict[str, float]:
    """Returns the last logs of two workers that Ray has not started and nobody interrupts."""
    python_with("ray")  # where there is no Ray, the tests are left out now
    folder = tmp_path_factory.mktemp("uninterrupted")
    # Ray gives each worker one thread.
    environments = [{"OMP_NUM_THREADS": "1", "KERAS_HOME": str(folder / "keras"), **e} for e in cluster_environments(2)]
    command = python(str(Path(__file__).with_name("without_ray.py")), *program_flags(folder))
    with Programs(folder, [command] * 2, environments) as programs:
        assert programs.wait(300) == [0, 0], programs.output()
        logs = result(programs.output())
    assert logs.keys() == {"accuracy", "loss", "val_accuracy", "val_loss"}
    assert logs["val_accuracy"] > 0.9
    return logs


@pytest.mark.parity_all
def test_workers_train(uninterrupted: dict[str, float], tmp_path: Path, ray_folder: str) -> None:
    with run(tmp_path, ray_folder) as job:
        assert job.wait_for_end() == 0, job.log[-8000:]
    assert_equal([result(job.log)], [uninterrupted])


def test_a_killed_worker_ends_the_others_and_new_ones_continue(
    uninterrupted: dict[str, float], tmp_path: Path, ray_folder: str
) -> None:
    with run(tmp_path, ray_folder) as job:
        job.wait_for("epoch 3", lambda: "Epoch 3/" in job.log)
        os.kill(dict(processes(job))[1], signal.SIGKILL)
        seconds = job.wait_for("new workers", lambda: len(processes(job)) == 4)
        print(f"{seconds:.1f} s from the kill until new workers train")
        assert job.wait_for_end() == 0, job.log[-8000:]
    assert_equal([result(job.log)], [uninterrupted])
    assert re.search(r"rank 0: process \d+ starts in epoch [23], step", job.log)
