"""`deploy/slurm/mnist.sbatch` on a real Slurm of two nodes: it trains, and continues after what a job may lose."""

from __future__ import annotations

import os
import signal
import sys
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import psutil
import pytest

from tests.deploy import slurm
from tests.deploy.runs import MARK, assert_equal, curve, leave_out, wait
from tests.processes import ROOT, marked_after

pytestmark = pytest.mark.timeout(900)
SCRIPT = ROOT / "deploy" / "slurm" / "mnist.sbatch"
EPOCHS = 12


@pytest.fixture(scope="module")
def cluster(tmp_path_factory: pytest.TempPathFactory) -> Iterator[slurm.Slurm]:
    """Yields a Slurm of two nodes; in the end no process of its jobs is left."""
    if reason := slurm.why_not():
        leave_out(reason)
    with slurm.Slurm(2, tmp_path_factory.mktemp("slurm")) as running:
        yield running
        assert not marked_after(MARK, str(running.folder), 5.0)


class Job:
    """A job of mnist.sbatch, and what it has written.

    Args:
        cluster: the Slurm.
        folder: gets the log and the run folder.
        epochs: passes over the digits of scikit-learn, 23 steps each.
        options: of sbatch.
    """

    def __init__(self, cluster: slurm.Slurm, folder: Path, epochs: int, *options: str) -> None:
        self.cluster, self.run, self._log = cluster, folder / "run", folder / "log"
        environment = {"PYTHON": sys.executable, "RUN_DIR": str(self.run), "KERAS_HOME": str(folder / "keras")}
        self.id = cluster.call(
            *["sbatch", "--parsable", f"--output={self._log}", *options, str(SCRIPT), f"--epochs={epochs}"],
            environment=environment | {MARK: str(cluster.folder)},
        ).strip()

    @property
    def log(self) -> str:
        """The output so far."""
        return self._log.read_text(errors="replace") if self._log.exists() else ""

    def wait(self, what: str, holds: Callable[[], object]) -> float:
        """Waits until `holds`, and returns the seconds it took."""
        return wait(what, holds, lambda: (self.cluster.job(self.id), self.log[-6000:]))

    def wait_for_epoch(self, epoch: int) -> None:
        """Waits until `epoch` epochs have been trained."""
        self.wait(f"epoch {epoch}", lambda: len(self.curve()) >= epoch)

    def wait_for_end(self) -> dict[str, str]:
        """Waits until the job has ended well, and returns what Slurm says about it."""
        self.wait("the end", lambda: self.cluster.job(self.id)["JobState"] == "COMPLETED")
        return self.cluster.job(self.id)

    def curve(self) -> list[dict[str, float]]:
        """Returns losses and metrics of the epochs so far."""
        return curve(self.run / "history.csv")

    def rank_process(self, host: int) -> psutil.Process:
        """Returns the process of the rank on a host."""
        [pid] = [
            pid
            for pid in self.cluster.hosts.pids(host)
            if "main.py" in " ".join(psutil.Process(pid).cmdline()) and "srun" not in psutil.Process(pid).name()
        ]
        return psutil.Process(pid)


@pytest.fixture(scope="module")
def uninterrupted(cluster: slurm.Slurm, tmp_path_factory: pytest.TempPathFactory) -> Job:
    """Returns a job that has run to its end."""
    job = Job(cluster, tmp_path_factory.mktemp("uninterrupted"), EPOCHS)
    assert job.wait_for_end()["Restarts"] == "0"
    return job


def test_two_nodes_train(uninterrupted: Job) -> None:
    result = next(line for line in uninterrupted.log.splitlines() if line.startswith("result "))
    assert "devices=2" in result
    assert float(result.split()[1].partition("=")[2]) > 0.95


@pytest.mark.parity_all
def test_two_jobs_share_the_nodes(cluster: slurm.Slurm, tmp_path: Path) -> None:
    folders = [tmp_path / name for name in ("one", "other")]
    for folder in folders:
        folder.mkdir()
    jobs = [Job(cluster, folder, 2) for folder in folders]
    for job in jobs:
        assert job.wait_for_end()["Restarts"] == "0"
    assert_equal(jobs[0].curve(), jobs[1].curve())


def test_a_killed_rank_ends_the_job_and_slurm_continues_it(
    cluster: slurm.Slurm, uninterrupted: Job, tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, EPOCHS)
    job.wait_for_epoch(2)
    job.rank_process(2).send_signal(signal.SIGKILL)
    seconds = job.wait("the end of srun", lambda: "srun ended with" in job.log)
    print(f"{seconds:.1f} s from the kill to the end of srun")
    assert seconds < 20
    assert "srun ended with 137 after 0 restarts" in job.log
    assert "Rank 1 was killed" in job.log
    assert job.wait_for_end()["Restarts"] == "1"
    assert "resuming in" in job.log
    assert_equal(job.curve(), uninterrupted.curve())


@pytest.mark.parity_all
def test_a_lost_node_ends_the_job_and_slurm_continues_it(
    cluster: slurm.Slurm, uninterrupted: Job, tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, EPOCHS)
    job.wait_for_epoch(2)
    cluster.hosts.drop(2)
    seconds = job.wait("the job waits", lambda: cluster.job(job.id)["JobState"] == "PENDING")
    print(f"{seconds:.1f} s from the loss of the node until the job waits for another")
    assert not [pid for pid in cluster.hosts.pids(1) if "main.py" in " ".join(psutil.Process(pid).cmdline())]
    cluster.start_node(2)
    assert int(job.wait_for_end()["Restarts"]) >= 1
    assert "resuming in" in job.log
    assert_equal(job.curve(), uninterrupted.curve())


@pytest.mark.parity_all
def test_a_preempted_job_saves_and_continues(cluster: slurm.Slurm, uninterrupted: Job, tmp_path: Path) -> None:
    job = Job(cluster, tmp_path, EPOCHS)
    job.wait_for_epoch(2)
    urgent = cluster.call(
        "sbatch", "--parsable", "-p", "urgent", "-N2", "--exclusive", "-o", os.devnull, "--wrap", "sleep 3"
    ).strip()
    seconds = job.wait("the urgent job runs", lambda: cluster.job(urgent)["JobState"] in ("RUNNING", "COMPLETED"))
    print(f"{seconds:.1f} s until the urgent job runs")
    assert "srun ended with 75 after 0 restarts" in job.log
    assert job.wait_for_end()["Restarts"] == "1"
    assert_equal(job.curve(), uninterrupted.curve())


@pytest.mark.parity_all
def test_a_job_near_its_limit_saves_and_continues_and_a_cancelled_one_does_not(
    cluster: slurm.Slurm, tmp_path: Path
) -> None:
    job = Job(cluster, tmp_path, 5000, "--signal=TERM@30")
    job.wait_for_epoch(1)
    cluster.call("scontrol", "update", f"JobId={job.id}", "TimeLimit=1")
    seconds = job.wait("the first start has ended", lambda: "srun ended with 75 after 0 restarts" in job.log)
    print(f"{seconds:.1f} s from the new limit to the end")
    cluster.call("scontrol", "update", f"JobId={job.id}", "TimeLimit=10")
    trained = len(job.curve())
    # The epoch that was resumed is a `fit` of its own: the second one has begun.
    job.wait_for_epoch(trained + 3)
    assert "resuming in" in job.log
    cluster.call("scancel", job.id)
    job.wait("the end of the second start", lambda: "after 1 restarts" in job.log)
    job.wait("the job is cancelled", lambda: cluster.job(job.id)["JobState"] == "CANCELLED")
    # A requeued job would start when the credentials of its last start have expired, after five seconds.
    time.sleep(8)
    assert cluster.job(job.id)["JobState"] == "CANCELLED"
    assert not marked_after(MARK, str(cluster.folder), 5.0)
