"""The launcher's defaults on managed platforms: nodes and ranks from the platform's variables."""

import argparse
import re
import subprocess
from pathlib import Path

import pytest

from strategies.launching.environment import check_single_launcher
from strategies.launching.flags import parsed
from strategies.launching.job_description import JobDescription
from tests import platforms
from tests.processes import free_ports
from tests.strategies.launching import ENVIRONMENT, LAUNCHER, TIMEOUT_SECONDS, written

HOSTS = ("algo-1", "algo-2")
PRIMARY = platforms.vertex_machine(0, 0)


def flags_of(monkeypatch: pytest.MonkeyPatch, environment: dict[str, str], *words: str) -> argparse.Namespace:
    for name in ("TF_CONFIG", *(f"PET_{name}" for name in ("NNODES", "NODE_RANK", "MASTER_ADDR"))):
        monkeypatch.delenv(name, raising=False)
    for name, value in environment.items():
        monkeypatch.setenv(name, value)
    return parsed([*words, __file__])


def nodes_of(flags: argparse.Namespace) -> tuple[int, int | None, str | None, int | None, int, str]:
    return (
        flags.nnodes,
        flags.node_rank,
        flags.master_addr,
        flags.master_port,
        flags.nproc_per_node,
        flags.described_by,
    )


@pytest.mark.parametrize(
    ("environment", "words", "expected"),
    [
        ({}, (), (1, None, None, None, 1, "")),
        (platforms.train_job(2, "2", 1), (), (2, 1, "digits-node-0-0.digits", 29500, 2, "PET_NNODES")),
        (
            platforms.train_job(2, "2", 0),
            ("--nproc-per-node=3", "--master-port=7"),
            (2, 0, "digits-node-0-0.digits", 7, 3, "PET_NNODES"),
        ),
        (platforms.train_job(1, "2", 0), (), (1, None, None, None, 2, "")),
        (platforms.train_job(2, "2", 1), ("--standalone",), (1, None, None, None, 2, "")),
        (platforms.train_job(2, "2", 1), ("--nnodes=1",), (1, None, None, None, 2, "")),
        (
            platforms.train_job(2, "1", 1),
            ("--nnodes=3", "--node-rank=2"),
            (3, 2, "digits-node-0-0.digits", 29500, 1, ""),
        ),
        (platforms.vertex([1, 2], 1, 1), (), (3, 2, PRIMARY, 2222, 1, "CLUSTER_SPEC")),
        (platforms.sagemaker(HOSTS, "algo-2"), (), (2, 1, "algo-1", 8890, 1, "SAGEMAKER")),
        (platforms.sagemaker_with_distribution(HOSTS, "algo-1"), (), (2, 0, "algo-1", 8890, 1, "SAGEMAKER")),
        (platforms.sagemaker(HOSTS[:1], "algo-1"), ("--nproc-per-node=2",), (1, None, None, None, 2, "")),
    ],
)
def test_flags(
    environment: dict[str, str], words: tuple[str, ...], expected: tuple[object, ...], monkeypatch: pytest.MonkeyPatch
) -> None:
    assert nodes_of(flags_of(monkeypatch, environment, *words)) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (platforms.tf_job({"worker": 2}, "worker", 0), "already is a rank of a job.*TF_CONFIG is set"),
        (platforms.train_job(2, "2", 2), "--node-rank must be between 0 and 1.*Received: 2"),
        ({"PET_NNODES": "1:2"}, r"--nnodes, whose default is from the environment \(PET_NNODES\): .*elastic"),
        ({"PET_NNODES": "2"}, "needs --node-rank"),
        (platforms.vertex([1, 2, 0, 1], 3, 0), "already is a rank|only evaluates"),
        ({"SM_HOSTS": "["}, "SM_HOSTS must be a list"),
    ],
)
def test_refused(
    environment: dict[str, str],
    message: str,
    monkeypatch: pytest.MonkeyPatch,
    capsys: pytest.CaptureFixture[str],
) -> None:
    with pytest.raises(SystemExit, match="2"):
        flags_of(monkeypatch, environment)
    assert re.search(message, " ".join(capsys.readouterr().err.split()))


def test_a_machine_that_only_evaluates_starts_no_ranks() -> None:
    environment = platforms.vertex([1, 2, 0, 1], 3, 0)
    with pytest.raises(ValueError, match="only evaluates"):
        JobDescription.from_environment(environment)


def test_ranks_of_a_platforms_nodes_are_no_nodes() -> None:
    """A program that starts the launcher inside of a rank is refused: the rank's TF_CONFIG is not the platform's."""
    inside = {**platforms.sagemaker(HOSTS, "algo-1"), "TF_CONFIG": '{"cluster": {"worker": ["a:1", "a:2"]}}'}
    with pytest.raises(ValueError, match="TF_CONFIG is set"):
        check_single_launcher(inside)
    check_single_launcher(platforms.sagemaker_with_distribution(HOSTS, "algo-1"))


def test_two_nodes_of_a_train_job_start_their_ranks(tmp_path: Path) -> None:
    """Two launchers without a flag, under the variables of a TrainJob's nodes; only the address is this machine's."""
    program = written(tmp_path, "import os; print(os.environ['RANK'], os.environ['WORLD_SIZE'])")
    here = {"PET_MASTER_ADDR": "127.0.0.1", "PET_MASTER_PORT": str(free_ports(1)[0])}
    nodes = [
        subprocess.Popen(
            [*LAUNCHER, program],
            env=ENVIRONMENT | platforms.train_job(2, "2", rank) | here,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            text=True,
        )
        for rank in range(2)
    ]
    try:
        outputs = [node.communicate(timeout=TIMEOUT_SECONDS) for node in nodes]
    finally:
        for node in nodes:
            node.kill()
    assert [node.returncode for node in nodes] == [0, 0], outputs
    assert sorted(" ".join(stdout for stdout, _ in outputs).split()) == sorted(
        ["[0]", "0", "4", "[1]", "1", "4", "[2]", "2", "4", "[3]", "3", "4"]
    )
    for rank, (_, stderr) in enumerate(outputs):
        assert f"node {rank} of 2 from PET_NNODES; node 0 is at 127.0.0.1:{here['PET_MASTER_PORT']}" in stderr
