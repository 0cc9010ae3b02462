"""Environments of managed platforms: each gives the rank, or an error that says what to change."""

import json

import pytest

from strategies.topology.cluster import Cluster
from strategies.topology.platforms import Machines
from tests import platforms

HOSTS = ("algo-1", "algo-2")
DIGITS = tuple(f"digits-{name}.default.svc:2222" for name in ("chief-0", "worker-0", "worker-1"))
MASTERS = tuple(address.replace("chief", "master") for address in DIGITS)
VERTEX = tuple(f"{platforms.vertex_machine(*place)}:2222" for place in ((0, 0), (1, 0), (1, 1)))
ALGOS = ("algo-1:8890", "algo-2:8890")


def without_tf_config(environment: dict[str, str]) -> dict[str, str]:
    return {name: value for name, value in environment.items() if name != "TF_CONFIG"}


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (platforms.tf_job({"chief": 1, "worker": 2}, "chief", 0), Cluster(0, 3, 0, 1, 0, DIGITS, "TF_CONFIG")),
        (platforms.tf_job({"chief": 1, "worker": 2}, "worker", 1), Cluster(2, 3, 0, 1, 2, DIGITS, "TF_CONFIG")),
        (platforms.tf_job({"master": 1, "worker": 2}, "master", 0), Cluster(0, 3, 0, 1, 0, MASTERS, "TF_CONFIG")),
        (platforms.tf_job({"worker": 2}, "worker", 1), Cluster(1, 2, 0, 1, 1, ("digits-worker-0.default.svc:2222",
         "digits-worker-1.default.svc:2222"), "TF_CONFIG")),
        (
            platforms.tf_job({"chief": 1, "worker": 2, "evaluator": 1}, "evaluator", 0),
            Cluster(source="TF_CONFIG", is_evaluator=True),
        ),
        (platforms.vertex([1, 2], 0, 0), Cluster(0, 3, 0, 1, 0, VERTEX, "TF_CONFIG")),
        (platforms.vertex([1, 2, 0, 1], 1, 1), Cluster(2, 3, 0, 1, 2, VERTEX, "TF_CONFIG")),
        (platforms.vertex([1, 2, 0, 1], 3, 0), Cluster(source="TF_CONFIG", is_evaluator=True)),
        (without_tf_config(platforms.vertex([1, 2], 1, 0)), Cluster(1, 3, 0, 1, 1, VERTEX, "CLUSTER_SPEC")),
        (
            without_tf_config(platforms.vertex([1, 2, 0, 1], 3, 0)),
            Cluster(source="CLUSTER_SPEC", is_evaluator=True),
        ),
        (without_tf_config(platforms.vertex([1], 0, 0)), Cluster(addresses=VERTEX[:1], source="CLUSTER_SPEC")),
        (platforms.sagemaker(HOSTS, "algo-1"), Cluster(0, 2, 0, 1, 0, ALGOS, "SAGEMAKER")),
        (platforms.sagemaker(HOSTS, "algo-2"), Cluster(1, 2, 0, 1, 1, ALGOS, "SAGEMAKER")),
        (platforms.sagemaker(HOSTS[:1], "algo-1"), Cluster(addresses=ALGOS[:1], source="SAGEMAKER")),
        (platforms.sagemaker_with_distribution(HOSTS, "algo-2"), Cluster(1, 2, 0, 1, 1, ALGOS, "TF_CONFIG")),
        # mpirun, which SageMaker's toolkit starts on one host, sets the ranks; SM_HOSTS still names machines.
        (
            {**platforms.sagemaker(HOSTS, "algo-2"), "OMPI_COMM_WORLD_RANK": "3", "OMPI_COMM_WORLD_SIZE": "4",
             "OMPI_COMM_WORLD_LOCAL_RANK": "1", "OMPI_COMM_WORLD_LOCAL_SIZE": "2"},
            Cluster(3, 4, 1, 2, 1, (), "OMPI"),
        ),
        # The launcher of an MPIJob has variables of Open MPI, and is no rank.
        (platforms.mpi_job_launcher(1), Cluster()),
        # Other programs use the name CLUSTER_SPEC too.
        ({"CLUSTER_SPEC": '{"nodes": 2}'}, Cluster()),
        ({"CLUSTER_SPEC": "two nodes"}, Cluster()),
    ],
)  # fmt: skip
def test_ranks(environment: dict[str, str], expected: Cluster) -> None:
    assert Cluster.from_environment(environment) == expected


SPEC = without_tf_config(platforms.vertex([1, 2], 1, 0))


@pytest.mark.parametrize(
    ("environment", "message"),
    [
        (platforms.tf_job({"ps": 1, "worker": 2}, "worker", 0), "names job 'ps'"),
        (platforms.vertex([1, 2, 1], 0, 0), "names job 'ps'"),
        (without_tf_config(platforms.vertex([1, 2, 1], 0, 0)), "parameter servers.*leave workerpool2 empty"),
        ({"CLUSTER_SPEC": SPEC["CLUSTER_SPEC"].replace('"index": 0', '"index": 2')}, "its task among"),
        ({"SM_HOSTS": "algo-1,algo-2"}, "SM_HOSTS must be a list.*in JSON.*Received: algo-1,algo-2"),
        ({"SM_HOSTS": "{}"}, "SM_HOSTS must be a list of host names"),
        ({"SM_HOSTS": json.dumps(HOSTS)}, "SM_CURRENT_HOST must be one of.*Received: SM_CURRENT_HOST=''"),
        (platforms.sagemaker(("algo-1", "algo-1"), "algo-1"), "different hosts"),
        ({**platforms.sagemaker(HOSTS, "algo-1"), "SM_IS_HETERO": "true"}, "several instance groups"),
    ],
)
def test_refused(environment: dict[str, str], message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Cluster.from_environment(environment)


@pytest.mark.parametrize(
    ("environment", "expected"),
    [
        (platforms.vertex([1, 2, 0, 1], 1, 0), True),
        (platforms.sagemaker_with_distribution(HOSTS, "algo-1"), True),
        (
            {**platforms.sagemaker(HOSTS, "algo-1"), "TF_CONFIG": '{"cluster": {"worker": ["10.0.0.1:2", "a:1"]}}'},
            False,
        ),
        ({**platforms.sagemaker(HOSTS, "algo-1"), "TF_CONFIG": "[]"}, False),
        ({**platforms.sagemaker(HOSTS, "algo-1"), "TF_CONFIG": "{"}, False),
    ],
)
def test_tasks_of_machines_and_of_ranks(environment: dict[str, str], expected: bool) -> None:
    machines = Machines.from_environment(environment)
    assert machines is not None
    assert machines.are_the_workers_of(environment["TF_CONFIG"]) is expected
