"""`deploy/mpi/run.sh` with Open MPI and a Horovod that was built with it: two ranks train, and continue after a loss.

That Horovod is in an environment of its own, which `make mpi-environment` makes in a few minutes.
"""

from __future__ import annotations

import signal
from pathlib import Path

import psutil
import pytest

from tests.deploy.runs import Run, assert_equal, curve, python_with
from tests.processes import ROOT

pytestmark = pytest.mark.timeout(900)
EPOCHS = 12
SCRIPT = ROOT / "deploy" / "mpi" / "run.sh"


def run(folder: Path, epochs: int) -> Run:
    """Returns a run of two ranks on this machine."""
    environment = {
        "PYTHON": python_with("mpi"),
        "RUN_DIR": str(folder / "run"),
        "KERAS_HOME": str(folder / "keras"),
        "SAVE_SECONDS": "10",
        # The tests may be root's; mpirun wants to know that this is intended.
        "OMPI_ALLOW_RUN_AS_ROOT": "1",
        "OMPI_ALLOW_RUN_AS_ROOT_CONFIRM": "1",
    }
    command = [str(SCRIPT), "-np", "2", "--oversubscribe", "--", f"--epochs={epochs}"]
    return Run(folder, command, environment)


def is_rank(rank: int, process: psutil.Process) -> bool:
    """Returns True for the process of a rank."""
    return "main.py" in " ".join(process.cmdline()) and process.environ().get("OMPI_COMM_WORLD_RANK") == str(rank)


@pytest.fixture(scope="module")
def uninterrupted(tmp_path_factory: pytest.TempPathFactory) -> list[dict[str, float]]:
    """Returns the losses of a run that was not interrupted."""
    folder = tmp_path_factory.mktemp("uninterrupted")
    with run(folder, EPOCHS) as job:
        assert job.wait_for_end() == 0, job.log
    result = next(line for line in job.log.splitlines() if line.startswith("result "))
    assert "devices=2" in result
    assert float(result.split()[1].partition("=")[2]) > 0.95
    return curve(folder / "run" / "history.csv")


def test_a_killed_rank_ends_mpirun_and_the_script_continues(
    uninterrupted: list[dict[str, float]], tmp_path: Path
) -> None:
    history = tmp_path / "run" / "history.csv"
    with run(tmp_path, EPOCHS) as job:
        job.wait_for("epoch 2", lambda: len(curve(history)) >= 2)
        job.rank_process(lambda process: is_rank(1, process)).kill()
        seconds = job.wait_for("the end of mpirun", lambda: "mpirun ended with" in job.log)
        print(f"{seconds:.1f} s from the kill to the end of mpirun")
        assert job.wait_for_end() == 0, job.log
    # Twice SAVE_SECONDS: Open MPI waits for them before and after its SIGTERM.
    assert seconds < 40
    assert "mpirun ended with 137 after 0 restarts" in job.log
    assert "resuming in" in job.log
    assert_equal(curve(history), uninterrupted)


def test_sigterm_saves_and_the_same_command_continues(uninterrupted: list[dict[str, float]], tmp_path: Path) -> None:
    history = tmp_path / "run" / "history.csv"
    with run(tmp_path, EPOCHS) as job:
        job.wait_for("epoch 2", lambda: len(curve(history)) >= 2)
        job.process.send_signal(signal.SIGTERM)
        code = job.wait_for_end()
        assert code == 75, job.log
    with run(tmp_path, EPOCHS) as job:
        assert job.wait_for_end() == 0, job.log
    assert "resuming in" in job.log
    assert_equal(curve(history), uninterrupted)


def test_a_program_that_cannot_start_is_not_started_again(tmp_path: Path) -> None:
    with run(tmp_path, -1) as job:
        assert job.wait_for_end() != 0
    assert job.log.count("mpirun ended with") == 1, job.log
