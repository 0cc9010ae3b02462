"""The processes of the job and this process' ranks, read from the environment. Pure: standard library only."""

from __future__ import annotations

import json
import os
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass

from strategies.topology.platforms import Machines
from strategies.topology.slurm import expand_counts, expand_hosts, first_port
from strategies.topology.torchrun import refuse_torchrun


@dataclass(frozen=True)
class Cluster:
    """The ranks of this process among all processes of the job.

    Args:
        rank: 0 to `world_size` - 1; rank 0 writes files.
        world_size: the number of processes of the job.
        local_rank: position among the processes of this node.
        local_size: the number of processes of this node.
        node_rank: the position of this node among the nodes.
        addresses: "host:port" of every process by rank; empty if the launcher does not publish them.
        source: the variables it was read from: "TF_CONFIG", "HOROVOD", "OMPI", "SLURM", "SAGEMAKER", "CLUSTER_SPEC"
            (Vertex AI), or "" for a single process.
        is_evaluator: true for a process outside of the training job that only evaluates, in a world of its own.

    Example:

        cluster = strategies.Cluster.from_environment()  # before a strategy is made, or TensorFlow has started
        assert 0 <= cluster.rank < cluster.world_size

    Raises:
        ValueError: a rank outside of its world, or sizes and addresses that do not fit together.
    """

    rank: int = 0
    world_size: int = 1
    local_rank: int = 0
    local_size: int = 1
    node_rank: int = 0
    addresses: tuple[str, ...] = ()
    source: str = ""
    is_evaluator: bool = False

    def __post_init__(self) -> None:
        for name, value, size in (
            ("rank", self.rank, self.world_size),
            ("local rank", self.local_rank, self.local_size),
        ):
            if not 0 <= value < size:
                raise ValueError(
                    f"{self.source or 'The cluster'}: the {name} must be between 0 and {size - 1}. "
                    f"Received: {name} {value} of {size}."
                )
        if self.local_size > self.world_size or (self.addresses and len(self.addresses) != self.world_size):
            raise ValueError(
                f"{self.source or 'The cluster'}: {self.local_size} processes on this node and "
                f"{len(self.addresses)} addresses do not fit a world of {self.world_size}."
            )

    @classmethod
    def from_addresses(cls, addresses: Sequence[str], rank: int, source: str = "") -> Cluster:
        """Returns the cluster of processes at `addresses`, "host:port" in the order of ranks, as seen by `rank`.

        Processes on the same host are assumed to be on the same node.

        Raises:
            ValueError: no address at `rank`.
        """
        if not 0 <= rank < len(addresses):
            raise ValueError(f"There is no address for rank {rank}. Received: {list(addresses)}.")
        hosts = [address.rpartition(":")[0] for address in addresses]
        return cls(
            rank=rank,
            world_size=len(addresses),
            local_rank=hosts[:rank].count(hosts[rank]),
            local_size=hosts.count(hosts[rank]),
            node_rank=list(dict.fromkeys(hosts)).index(hosts[rank]),
            addresses=tuple(addresses),
            source=source,
        )

    @classmethod
    def from_environment(cls, environment: Mapping[str, str] | None = None) -> Cluster:
        """Returns the cluster described by the launcher's environment variables.

        TF_CONFIG and the variables of horovodrun and mpirun are set by the program's own launcher, and must agree if
        several are set. Those of Slurm, SageMaker and Vertex AI are read only if none of these is set, because they are
        also set around other launchers. Without any of them, the job is a single process.

        Args:
            environment: variables by name; ``os.environ`` if None.

        Raises:
            ValueError: variables that are malformed, incomplete or contradict each other, or only torchrun's.
        """
        variables = os.environ if environment is None else environment
        found = [c for c in (_tf_config(variables), _horovod(variables), _open_mpi(variables)) if c]
        for other in found[1:]:
            if (found[0].rank, found[0].world_size) != (other.rank, other.world_size):
                raise ValueError(
                    f"The environment is inconsistent; start the program with one launcher, or unset the "
                    f"variables of the other. Received: rank {found[0].rank} of {found[0].world_size} from "
                    f"{found[0].source}, rank {other.rank} of {other.world_size} from {other.source}."
                )
        if cluster := found[0] if found else _slurm(variables) or _machines(variables):
            return cluster
        refuse_torchrun(variables)
        return cls()


def _tf_config(variables: Mapping[str, str]) -> Cluster | None:
    text = variables.get("TF_CONFIG", "")
    if not text.strip():
        return None

    def refuse(what: str) -> ValueError:
        example = '{"cluster": {"worker": ["host0:2222", "host1:2222"]}, "task": {"type": "worker", "index": 0}}'
        return ValueError(f"TF_CONFIG {what}. Write it like {example}. Received: {text}")

    try:
        config = json.loads(text)
    except json.JSONDecodeError as error:
        raise refuse(f"is not JSON ({error})") from None
    if not isinstance(config, dict):
        raise refuse("is not a JSON object")
    if not config.get("cluster"):
        return Cluster(source="TF_CONFIG")
    jobs, task = config["cluster"], config.get("task")
    if not isinstance(jobs, dict) or not isinstance(task, dict):
        raise refuse("needs an object 'cluster' and an object 'task'")
    for job, hosts in jobs.items():
        if job not in ("chief", "master", "worker", "evaluator"):
            raise refuse(f"names job {job!r}; only chief, worker and evaluator are supported")
        if not isinstance(hosts, list) or not all(isinstance(h, str) and _is_address(h) for h in hosts):
            raise refuse(f"needs a list of 'host:port' for job {job!r}")
    kind, index = task.get("type"), task.get("index")
    if isinstance(index, str) and index.isdigit():
        index = int(index)
    if isinstance(index, bool) or not isinstance(index, int):
        raise refuse("needs a task with a whole number as its 'index'")
    if kind == "evaluator":
        return Cluster(source="TF_CONFIG", is_evaluator=True)
    if kind not in jobs or not 0 <= index < len(jobs[kind]):
        raise refuse(f"has no task {kind!r} number {index} in its cluster")
    # "master" is the older name of the chief, which TFJob and Vertex AI still write.
    chiefs, workers = [*jobs.get("chief", []), *jobs.get("master", [])], jobs.get("worker", [])
    if len(chiefs) > 1:
        raise refuse("may name one chief only")
    addresses = tuple(chiefs + workers)
    if len(set(addresses)) != len(addresses):
        raise refuse("has two tasks with the same address")
    rank = index + (len(chiefs) if kind == "worker" else 0)
    return Cluster.from_addresses(addresses, rank, source="TF_CONFIG")


def _is_address(address: str) -> bool:
    host, _, port = address.rpartition(":")
    return bool(host) and port.isdigit() and 0 < int(port) < 65536


def _horovod(variables: Mapping[str, str]) -> Cluster | None:
    if "HOROVOD_RANK" not in variables and "HOROVOD_SIZE" not in variables:
        return None
    number = _numbers(variables, "HOROVOD", "Start the program by horovodrun")
    return Cluster(
        rank=number("HOROVOD_RANK"),
        world_size=number("HOROVOD_SIZE"),
        local_rank=number("HOROVOD_LOCAL_RANK"),
        local_size=number("HOROVOD_LOCAL_SIZE"),
        node_rank=number("HOROVOD_CROSS_RANK"),
        source="HOROVOD",
    )


def _open_mpi(variables: Mapping[str, str]) -> Cluster | None:
    if "OMPI_COMM_WORLD_RANK" not in variables:
        return None
    number = _numbers(variables, "OMPI", "Start the program by mpirun")
    rank, local_size = number("OMPI_COMM_WORLD_RANK"), number("OMPI_COMM_WORLD_LOCAL_SIZE")
    return Cluster(
        rank=rank,
        world_size=number("OMPI_COMM_WORLD_SIZE"),
        local_rank=number("OMPI_COMM_WORLD_LOCAL_RANK"),
        local_size=local_size,
        # Open MPI publishes no node number (its NODE_RANK counts inside a node); it fills one node after the other.
        node_rank=rank // max(1, local_size),
        source="OMPI",
    )


def _slurm(variables: Mapping[str, str]) -> Cluster | None:
    if "SLURM_PROCID" not in variables:
        return None
    number = _numbers(variables, "SLURM", "Start the program by srun")
    rank = number("SLURM_PROCID")
    in_step = "SLURM_STEP_ID" in variables or "SLURM_STEPID" in variables or rank > 0
    size = number("SLURM_STEP_NUM_TASKS" if "SLURM_STEP_NUM_TASKS" in variables else "SLURM_NTASKS")
    if not in_step and size > 1:
        # In a batch script the variables look like rank 0 of the job, but the other tasks have not been started.
        raise ValueError(
            f"Slurm allotted {size} tasks, but this process was not started by srun (SLURM_STEP_ID is not "
            f"set): the other tasks do not run. Start it with srun, or unset SLURM_PROCID."
        )
    names = ("SLURM_STEP_NODELIST", "SLURM_JOB_NODELIST", "SLURM_NODELIST")
    nodes = expand_hosts(next((variables[name] for name in names if name in variables), ""))
    tasks_name = next((n for n in ("SLURM_STEP_TASKS_PER_NODE", "SLURM_TASKS_PER_NODE") if n in variables), "")
    counts = expand_counts(variables[tasks_name]) if tasks_name else ()
    if not counts:
        even = size % max(1, len(nodes)) == 0
        counts = (size // max(1, len(nodes)),) * max(1, len(nodes)) if even else ()
    if sum(counts) != size or (nodes and len(counts) != len(nodes)):
        raise ValueError(
            f"Slurm's variables are inconsistent: {size} tasks, nodes {list(nodes)}, tasks per node "
            f"{list(counts)} ({tasks_name or 'SLURM_TASKS_PER_NODE is not set'})."
        )
    node_rank = number("SLURM_NODEID") if "SLURM_NODEID" in variables else _node_of(rank, counts)
    if not 0 <= node_rank < len(counts):
        raise ValueError(f"Slurm: node {node_rank} is not among {len(counts)} nodes. Check SLURM_NODEID.")
    first = sum(counts[:node_rank])
    port = first_port(variables)
    addresses = tuple(f"{node}:{port + i}" for node, count in zip(nodes, counts, strict=False) for i in range(count))
    return Cluster(
        rank=rank,
        world_size=size,
        local_rank=number("SLURM_LOCALID") if "SLURM_LOCALID" in variables else rank - first,
        local_size=counts[node_rank],
        node_rank=node_rank,
        addresses=addresses,
        source="SLURM",
    )


def _machines(variables: Mapping[str, str]) -> Cluster | None:
    machines = Machines.from_environment(variables)
    if machines is None:
        return None
    if machines.index is None:
        return Cluster(source=machines.source, is_evaluator=True)
    return Cluster.from_addresses(machines.addresses, machines.index, source=machines.source)


def _node_of(rank: int, counts: tuple[int, ...]) -> int:
    for node, _ in enumerate(counts):
        if rank < sum(counts[: node + 1]):
            return node
    return len(counts)


def _numbers(variables: Mapping[str, str], source: str, remedy: str) -> Callable[[str], int]:
    def number(name: str) -> int:
        value = variables.get(name, "")
        if not value.strip().isdigit():
            raise ValueError(
                f"{source}: {name} must be a whole number. {remedy}, which sets all of its variables, or set "
                f"it. Received: {value!r}."
            )
        return int(value)

    return number
