"""Environments of every launcher, as literal tables."""

import json
from typing import Any

import pytest

from strategies.topology.cluster import Cluster


def tf_config(cluster: Any, kind: str = "worker", index: Any = 0) -> dict[str, str]:
    return {"TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kind, "index": index}})}


HOROVOD = {
    "HOROVOD_RANK": "3",
    "HOROVOD_SIZE": "4",
    "HOROVOD_LOCAL_RANK": "1",
    "HOROVOD_LOCAL_SIZE": "2",
    "HOROVOD_CROSS_RANK": "1",
    "HOROVOD_CROSS_SIZE": "2",
}
SLURM = {
    "SLURM_PROCID": "3",
    "SLURM_NTASKS": "4",
    "SLURM_LOCALID": "0",
    "SLURM_NODEID": "1",
    "SLURM_JOB_NODELIST": "node[01-02]",
    "SLURM_TASKS_PER_NODE": "3,1",
    "SLURM_STEP_ID": "0",
}
OPEN_MPI = {
    "OMPI_COMM_WORLD_RANK": "3",
    "OMPI_COMM_WORLD_SIZE": "4",
    "OMPI_COMM_WORLD_LOCAL_RANK": "1",
    "OMPI_COMM_WORLD_LOCAL_SIZE": "2",
}
TWO = ["a:1", "b:1"]


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        ({}, Cluster()),
        ({"TF_CONFIG": ""}, Cluster()),
        ({"TF_CONFIG": "{}"}, Cluster(source="TF_CONFIG")),
        (
            tf_config({"worker": ["a:1", "a:2", "b:1"]}, index=1),
            Cluster(1, 3, 1, 2, 0, ("a:1", "a:2", "b:1"), "TF_CONFIG"),
        ),
        (
            tf_config({"worker": ["b:1", "[::1]:2"], "chief": ["b:2"]}, index="1"),
            Cluster(2, 3, 0, 1, 1, ("b:2", "b:1", "[::1]:2"), "TF_CONFIG"),
        ),
        (
            tf_config({"worker": ["b:1"], "chief": ["a:2"]}, "chief"),
            Cluster(0, 2, 0, 1, 0, ("a:2", "b:1"), "TF_CONFIG"),
        ),
        (tf_config({"worker": TWO}, "evaluator"), Cluster(source="TF_CONFIG", is_evaluator=True)),
        (HOROVOD, Cluster(3, 4, 1, 2, 1, (), "HOROVOD")),
        (OPEN_MPI, Cluster(3, 4, 1, 2, 1, (), "OMPI")),
        ({**HOROVOD, **OPEN_MPI}, Cluster(3, 4, 1, 2, 1, (), "HOROVOD")),
        ({**HOROVOD, **SLURM, "SLURM_PROCID": "0"}, Cluster(3, 4, 1, 2, 1, (), "HOROVOD")),
        (
            SLURM,
            Cluster(3, 4, 0, 1, 1, ("node01:8888", "node01:8889", "node01:8890", "node02:8888"), "SLURM"),
        ),
        (
            {"SLURM_PROCID": "3", "SLURM_NTASKS": "4", "SLURM_JOB_NODELIST": "n[1-2]"},
            Cluster(3, 4, 1, 2, 1, ("n1:8888", "n1:8889", "n2:8888", "n2:8889"), "SLURM"),
        ),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "1"}, Cluster(source="SLURM")),
        ({**SLURM, "SLURM_PROCID": "0", "SLURM_STEP_NUM_TASKS": "1", "SLURM_NODEID": "0",
          "SLURM_STEP_TASKS_PER_NODE": "1", "SLURM_STEP_NODELIST": "node02"},
         Cluster(0, 1, 0, 1, 0, ("node02:8888",), "SLURM")),
    ],
)  # fmt: skip
def test_environments(environment: dict[str, str], expected: Cluster) -> None:
    assert Cluster.from_environment(environment) == expected


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        ({"TF_CONFIG": "{"}, "is not JSON"),
        ({"TF_CONFIG": "[]"}, "is not a JSON object"),
        ({"TF_CONFIG": '{"cluster": {"worker": ["a:1"]}}'}, "object 'task'"),
        (tf_config({"worker": TWO}, index=2), "no task 'worker' number 2"),
        (tf_config({"worker": TWO}, index=-1), "no task 'worker' number -1"),
        (tf_config({"worker": TWO}, index=None), "whole number as its 'index'"),
        (tf_config({"worker": TWO}, "chief"), "no task 'chief' number 0"),
        (tf_config({"worker": TWO, "ps": ["c:1"]}), "names job 'ps'"),
        (tf_config({"worker": "a:1"}), "list of 'host:port' for job 'worker'"),
        (tf_config({"worker": ["a"]}), "list of 'host:port' for job 'worker'"),
        (tf_config({"worker": ["a:0"]}), "list of 'host:port' for job 'worker'"),
        (tf_config({"worker": ["a:1", "a:1"]}), "two tasks with the same address"),
        (tf_config({"chief": TWO}, "chief"), "one chief only"),
        ({**HOROVOD, "HOROVOD_LOCAL_RANK": ""}, "HOROVOD_LOCAL_RANK must be a whole number.*Received: ''"),
        ({**HOROVOD, "HOROVOD_RANK": "4"}, "between 0 and 3. Received: rank 4 of 4"),
        ({"HOROVOD_RANK": "0"}, "HOROVOD_SIZE must be a whole number.*horovodrun"),
        ({**HOROVOD, **tf_config({"worker": TWO})}, "rank 0 of 2 from TF_CONFIG, rank 3 of 4 from HOROVOD"),
        (
            {**OPEN_MPI, "OMPI_COMM_WORLD_RANK": "0", **HOROVOD},
            "rank 3 of 4 from HOROVOD, rank 0 of 4 from OMPI",
        ),
        ({**SLURM, "SLURM_NTASKS": "5"}, "5 tasks, nodes.*tasks per node"),
        ({**SLURM, "SLURM_NODEID": "2"}, "node 2 is not among 2 nodes"),
        ({**SLURM, "SLURM_JOB_NODELIST": "node[2-1]"}, "ascending range"),
        ({"SLURM_PROCID": "0", "SLURM_NTASKS": "4"}, "not started by srun"),
    ],
)
def test_refused_environments(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cluster.from_environment(environment)


def test_the_environment_of_the_process_is_the_default(monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in HOROVOD.items():
        monkeypatch.setenv(name, value)
    monkeypatch.delenv("TF_CONFIG", raising=False)
    assert Cluster.from_environment().rank == 3


def test_a_world_that_does_not_add_up() -> None:
    with pytest.raises(ValueError, match="1 addresses do not fit a world of 2"):
        Cluster(world_size=2, addresses=("a:1",))
