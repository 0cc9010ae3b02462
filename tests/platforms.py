"""The environments of training jobs on managed platforms, as their operators and toolkits write them.

Sources: Kubeflow's training operator 1.9 (TFJob), MPI operator 0.8.2 (MPIJob v2beta1), Trainer 2.3 (TrainJob), Vertex
AI's page on distributed training, SageMaker's training toolkit 5.1.4 and its TensorFlow containers. `make deploy-tests`
compares SageMaker's with those that the toolkit makes.
"""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from typing import Any

JOB, NAMESPACE = "digits", "default"
#: The part of the names of Vertex AI's machines that differs between jobs.
VERTEX_ID = "669872baaf"


def _compact(value: Any) -> str:
    """Returns JSON as Go and SageMaker's toolkit write it: sorted, without spaces."""
    return json.dumps(value, sort_keys=True, separators=(",", ":"))


def tf_job(replicas: Mapping[str, int], kind: str, index: int) -> dict[str, str]:
    """Returns what the training operator sets in the container of a TFJob's replica; `replicas` by lower-case type."""

    def address(task: str, i: int) -> str:
        return f"{JOB}-{task}-{i}.{NAMESPACE}.svc:2222"

    cluster = {task: [address(task, i) for i in range(count)] for task, count in replicas.items()}
    return {"TF_CONFIG": _compact({"cluster": cluster, "task": {"type": kind, "index": index}, "environment": "cloud"})}


def mpi_job_worker(index: int) -> str:
    """Returns the name under which the MPI operator makes a worker of an MPIJob reachable."""
    return f"{JOB}-worker-{index}.{JOB}.{NAMESPACE}.svc"


def mpi_job_hostfile(num_workers: int, slots: int) -> str:
    """Returns /etc/mpi/hostfile of the launcher of an MPIJob for Open MPI."""
    return "".join(f"{mpi_job_worker(i)} slots={slots}\n" for i in range(num_workers))


def mpi_job_discovery(num_workers: int) -> str:
    """Returns /etc/mpi/discover_hosts.sh of the launcher of an MPIJob while its workers run."""
    return "#!/bin/sh\n" + "".join(f"echo {mpi_job_worker(i)}\n" for i in range(num_workers))


def mpi_job_launcher(slots: int) -> dict[str, str]:
    """Returns what the MPI operator sets in the container of the launcher, for Open MPI."""
    return {
        "K_MPI_JOB_ROLE": "launcher",
        "OMPI_MCA_orte_keep_fqdn_hostnames": "true",
        "OMPI_MCA_orte_default_hostfile": "/etc/mpi/hostfile",
        "OMPI_MCA_plm_rsh_args": "-o ConnectionAttempts=10",
        "OMPI_MCA_orte_set_default_slots": str(slots),
        "NVIDIA_VISIBLE_DEVICES": "",
        "NVIDIA_DRIVER_CAPABILITIES": "",
    }


def train_job_node(index: int) -> str:
    """Returns the name of a TrainJob's node: pod and headless service of its JobSet."""
    return f"{JOB}-node-0-{index}.{JOB}"


def train_job(num_nodes: int, procs_per_node: str, index: int) -> dict[str, str]:
    """Returns what the Trainer sets on a node of a TrainJob whose runtime has the ML policy "torch"."""
    return {
        "PET_NNODES": str(num_nodes),
        "PET_NPROC_PER_NODE": procs_per_node,
        "PET_NODE_RANK": str(index),
        "PET_MASTER_ADDR": train_job_node(0),
        "PET_MASTER_PORT": "29500",
    }


def vertex_machine(pool: int, index: int) -> str:
    """Returns the name of a machine of a worker pool on Vertex AI."""
    return f"cmle-training-workerpool{pool}-{VERTEX_ID}-{index}"


def vertex(replica_counts: Sequence[int], pool: int, index: int) -> dict[str, str]:
    """Returns what Vertex AI sets on a machine of a custom job with several machines.

    Args:
        replica_counts: the machines of each worker pool: the primary one, workers, parameter servers, evaluators.
        pool: the worker pool of this machine.
        index: its position there.
    """
    pools = {
        f"workerpool{i}": [f"{vertex_machine(i, j)}:2222" for j in range(count)]
        for i, count in enumerate(replica_counts)
        if count
    }
    kinds = ("chief", "worker", "ps", "evaluator")
    # The evaluators are no part of TensorFlow's cluster.
    cluster = {kind: pools[f"workerpool{i}"] for i, kind in enumerate(kinds[:3]) if f"workerpool{i}" in pools}
    job = '{"python_module":"","package_uris":[],"job_args":[]}'
    common = {"environment": "cloud", "job": job}
    return {
        "CLUSTER_SPEC": json.dumps(
            {"cluster": pools, "task": {"type": f"workerpool{pool}", "index": index}, "open_ports": [3333], **common}
        ),
        "TF_CONFIG": json.dumps({"cluster": cluster, "task": {"type": kinds[pool], "index": index}, **common}),
        "CLOUD_ML_JOB_ID": "1234567890123456789",
        "CLOUD_ML_PROJECT_ID": "some-project",
        "AIP_MODEL_DIR": "gs://some-bucket/digits/model/",
        "AIP_CHECKPOINT_DIR": "gs://some-bucket/digits/checkpoints/",
        "AIP_TENSORBOARD_LOG_DIR": "gs://some-bucket/digits/logs/",
    }


def sagemaker(hosts: Sequence[str], current: str) -> dict[str, str]:
    """Returns variables that SageMaker's toolkit sets for the entry point: those that programs read."""
    resources = {
        "current_host": current,
        "hosts": list(hosts),
        "network_interface_name": "eth0",
        "current_instance_type": "ml.c5.xlarge",
        "current_group_name": "homogeneousCluster",
        "instance_groups": [
            {"instance_group_name": "homogeneousCluster", "instance_type": "ml.c5.xlarge", "hosts": list(hosts)}
        ],
    }
    return {
        "SM_HOSTS": _compact(list(hosts)),
        "SM_CURRENT_HOST": current,
        "SM_RESOURCE_CONFIG": _compact(resources),
        "SM_IS_HETERO": "false",
        "SM_NETWORK_INTERFACE_NAME": "eth0",
        "SM_CHANNELS": '["training"]',
        "SM_CHANNEL_TRAINING": "/opt/ml/input/data/training",
        "SM_MODEL_DIR": "/opt/ml/model",
        "SM_OUTPUT_DATA_DIR": "/opt/ml/output/data",
        "SM_HPS": '{"epochs":4}',
        "SM_HP_EPOCHS": "4",
        "SM_USER_ARGS": '["--epochs","4"]',
    }


def sagemaker_with_distribution(hosts: Sequence[str], current: str) -> dict[str, str]:
    """Returns the same with the estimator's distribution multi_worker_mirrored_strategy, which also sets TF_CONFIG."""
    task = {"index": list(hosts).index(current), "type": "worker"}
    config = {"cluster": {"worker": [f"{host}:8890" for host in hosts]}, "environment": "cloud", "task": task}
    return {**sagemaker(hosts, current), "TF_CONFIG": json.dumps(config)}


def names_of_machines(count: int) -> list[list[str]]:
    """Returns the names of each machine of a job, on all platforms; on Vertex AI the first one is the primary."""
    names = []
    for i in range(count):
        of_tf_job = f"{JOB}-worker-{i}.{NAMESPACE}.svc"
        on_vertex = vertex_machine(min(i, 1), max(0, i - 1))
        names.append([of_tf_job, mpi_job_worker(i), train_job_node(i), on_vertex, f"algo-{i + 1}"])
    return names
