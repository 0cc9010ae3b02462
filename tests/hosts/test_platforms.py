"""Two hosts with the names and the variables of each managed platform train to the weights of one device.

No platform is involved: the processes are started here, as the platforms start them.
"""

from __future__ import annotations

import os
import pickle
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

import keras
import numpy as np
import psutil
import pytest

from tests import platforms
from tests.hosts import ssh
from tests.hosts.jobs import ENGINES, PROGRAM
from tests.hosts.network import INTERFACE, Hosts
from tests.processes import ROOT
from tests.strategies.parity.harness import TOLERANCE, Outcome, compare

LIMIT_SECONDS = 150.0
MULTI_WORKER, HOROVOD = ENGINES
HOSTS = ("algo-1", "algo-2")
SAGEMAKER_SCRIPT = str(ROOT / "deploy" / "sagemaker" / "source" / "train.py")
# All but one of the environments reach the strategy as TF_CONFIG, which is read in one place.
RESEMBLING = pytest.mark.parity_all


@pytest.mark.timeout(LIMIT_SECONDS + 30)
@pytest.mark.parametrize(
    ("environments", "launcher"),
    [
        pytest.param([platforms.sagemaker(HOSTS, host) for host in HOSTS], (), id="sagemaker"),
        pytest.param([platforms.vertex([1, 1], pool, 0) for pool in (0, 1)], (), id="vertex", marks=RESEMBLING),
        pytest.param(
            [platforms.tf_job({"worker": 2}, "worker", i) for i in range(2)], (), id="tfjob", marks=RESEMBLING
        ),
        pytest.param(
            [platforms.train_job(2, "1", i) for i in range(2)],
            ("-m", "strategies.launch"),
            id="trainjob",
            marks=RESEMBLING,
        ),
        pytest.param(
            [platforms.vertex([1, 1], pool, 0) for pool in (0, 1)],
            ("-m", "strategies.launch"),
            id="vertex-launcher",
            marks=RESEMBLING,
        ),
    ],
)
def test_one_process_on_each_machine(
    environments: Sequence[dict[str, str]], launcher: Sequence[str], hosts: Hosts, folder: Path, on_plain_keras: Outcome
) -> None:
    logs = [folder / f"log{i}" for i in range(2)]
    command = [sys.executable, *launcher, PROGRAM, MULTI_WORKER, str(folder)]
    processes = [hosts.run(i, command, log, environments[i]) for i, log in enumerate(logs)]
    codes = [process.wait(LIMIT_SECONDS) for process in processes]
    assert codes == [0, 0], "\n".join(log.read_text(errors="replace")[-4000:] for log in logs)
    difference = compare(on_plain_keras, _outcome(folder))
    assert difference.largest <= TOLERANCE, difference


@RESEMBLING
@pytest.mark.timeout(LIMIT_SECONDS + 30)
def test_containers_that_are_restarted_resume(hosts: Hosts, folder: Path, on_plain_keras: Outcome) -> None:
    """Rank 1 is killed: rank 0 fails too, both start again under the same addresses, as a TFJob with OnFailure does."""
    program = [sys.executable, PROGRAM, MULTI_WORKER, str(folder), "--saves", "--seconds-per-step", "0.1"]
    logs = [folder / f"log{i}" for i in range(2)]
    processes = [
        hosts.run(i, ["sh", "-c", 'until "$@"; do :; done', "container", *program], log, environment)
        for i, log in enumerate(logs)
        for environment in [platforms.tf_job({"worker": 2}, "worker", i)]
    ]
    steps = folder / "steps1"
    deadline = time.monotonic() + LIMIT_SECONDS / 2
    while not (steps.exists() and int(steps.read_text() or 0) >= 5):
        assert time.monotonic() < deadline, logs[1].read_text(errors="replace")[-4000:]
        time.sleep(0.05)
    [rank] = [pid for pid in hosts.pids(1) if psutil.Process(pid).name().startswith("python")]
    os.kill(rank, signal.SIGKILL)
    assert [process.wait(LIMIT_SECONDS / 2) for process in processes] == [0, 0]
    assert "rank 1" in logs[0].read_text(errors="replace").lower()
    difference = compare(on_plain_keras, _outcome(folder))
    assert difference.largest <= TOLERANCE, difference


@RESEMBLING
@pytest.mark.timeout(LIMIT_SECONDS + 30)
def test_the_hostfile_of_an_mpi_job(hosts: Hosts, folder: Path, on_plain_keras: Outcome) -> None:
    """horovodrun on a launcher of its own, with the host file of the operator, reaches the sshd of each worker."""
    (folder / "hostfile").write_text(platforms.mpi_job_hostfile(2, 1))
    horovodrun = str(Path(sys.executable).with_name("horovodrun"))
    arguments = ["-np", "2", "--hostfile", str(folder / "hostfile"), "--network-interfaces", INTERFACE]
    program = [sys.executable, PROGRAM, HOROVOD, str(folder)]
    log = folder / "log"
    command = [horovodrun, *arguments, "--gloo", "--disable-cache", "--ssh-port", str(ssh.PORT), *program]
    code = hosts.run(2, command, log, platforms.mpi_job_launcher(1)).wait(LIMIT_SECONDS)
    assert code == 0, log.read_text(errors="replace")[-6000:]
    difference = compare(on_plain_keras, _outcome(folder))
    assert difference.largest <= TOLERANCE, difference


@RESEMBLING
@pytest.mark.timeout(3 * LIMIT_SECONDS + 30)
def test_the_script_for_sagemaker_resumes_without_a_shared_folder(hosts: Hosts, folder: Path) -> None:
    """Two machines with folders of their own, as on SageMaker; the second job goes on from rank 0's checkpoint."""
    random = np.random.default_rng(0)
    (folder / "training").mkdir()
    images = random.integers(0, 256, (100, 8, 8), dtype="uint8")
    np.savez(folder / "training" / "digits.npz", images=images, labels=random.integers(0, 10, 100))

    def train(names: Sequence[str], job: str, epochs: int) -> keras.Model:
        processes, logs = [], []
        for i, name in enumerate(names):
            machine = folder / f"{job}-{name}"
            machine.mkdir(exist_ok=True)
            logs.append(machine / "log")
            places = {"SM_CHANNEL_TRAINING": str(folder / "training"), "SM_MODEL_DIR": str(machine)}
            words = ["--epochs", str(epochs), "--batch_size", "32", "--checkpoints", str(machine / "checkpoints")]
            environment = platforms.sagemaker(names, name) | places
            processes.append(hosts.run(i, [sys.executable, SAGEMAKER_SCRIPT, *words], logs[-1], environment))
        codes = [process.wait(LIMIT_SECONDS) for process in processes]
        assert set(codes) == {0}, "\n".join(log.read_text(errors="replace")[-4000:] for log in logs)
        return keras.models.load_model(folder / f"{job}-{names[0]}" / "model.keras")

    alone = train(HOSTS[:1], "alone", 3)
    train(HOSTS, "together", 2)
    together = train(HOSTS, "together", 3)
    assert "Epoch 3/3" in (folder / "together-algo-1" / "log").read_text()
    assert "Epoch 2/3" not in (folder / "together-algo-1" / "log").read_text()
    assert not (folder / "together-algo-2" / "model.keras").exists()
    for one, other in zip(alone.get_weights(), together.get_weights(), strict=True):
        np.testing.assert_allclose(other, one, rtol=0, atol=TOLERANCE)


def _outcome(folder: Path) -> Outcome:
    found: Outcome = pickle.loads((folder / "outcome").read_bytes())
    return found
