"""The number and the environment variables of the processes of a node. Standard library only."""

import json
import subprocess
from collections.abc import Mapping
from dataclasses import dataclass

from strategies.topology.cores import Threads, usable_cores
from strategies.topology.platforms import Machines
from strategies.topology.rank_end import FOLDER_VARIABLE as TRACEBACK_VARIABLE

_OTHER_LAUNCHERS = {"HOROVOD_RANK": "horovodrun", "OMPI_COMM_WORLD_RANK": "mpirun"}
_NVIDIA_SMI_TIMEOUT_SECONDS = 30


@dataclass(frozen=True)
class World:
    """All processes of the job, and the rank of this node.

    Args:
        addresses_by_node: for each node, in the order of node ranks, the "host:port" of its processes.
        node_rank: this node's position in that list.
        master_addr, master_port: the values of MASTER_ADDR and MASTER_PORT.
        num_restarts, max_restarts: the restarts of the job so far, and their limit.
        traceback_dir: the folder of this node's launcher for tracebacks.
    """

    addresses_by_node: tuple[tuple[str, ...], ...]
    node_rank: int
    master_addr: str
    master_port: int
    num_restarts: int = 0
    max_restarts: int = 0
    traceback_dir: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The "host:port" of every process by rank, node 0's first."""
        return tuple(address for node in self.addresses_by_node for address in node)

    @property
    def local_size(self) -> int:
        """The number of processes of this node."""
        return len(self.addresses_by_node[self.node_rank])

    @property
    def first_rank(self) -> int:
        """The rank of this node's first process."""
        return sum(len(node) for node in self.addresses_by_node[: self.node_rank])


def rank_environment(world: World, local_rank: int, num_cores: int, environment: Mapping[str, str]) -> dict[str, str]:
    """Returns the environment of one process: `environment` with the variables of its rank and its numbers of threads.

    Variables of the rank replace existing values; existing numbers of threads are kept.
    """
    rank = world.first_rank + local_rank
    addresses = world.addresses
    config = {"cluster": {"worker": list(addresses)}, "task": {"type": "worker", "index": rank}}
    share = Threads.for_cores(num_cores)
    threads = {
        "TF_NUM_INTRAOP_THREADS": str(share.intra_op),
        "TF_NUM_INTEROP_THREADS": str(share.inter_op),
        "OMP_NUM_THREADS": str(share.intra_op),
        # Python buffers output to a pipe: lines would appear minutes late, or never if the process dies.
        "PYTHONUNBUFFERED": "1",
    }
    return {
        **threads,
        **environment,
        "TF_CONFIG": json.dumps(config),
        "RANK": str(rank),
        "LOCAL_RANK": str(local_rank),
        "WORLD_SIZE": str(len(addresses)),
        "LOCAL_WORLD_SIZE": str(world.local_size),
        "GROUP_RANK": str(world.node_rank),
        "MASTER_ADDR": world.master_addr,
        "MASTER_PORT": str(world.master_port),
        "TORCHELASTIC_RESTART_COUNT": str(world.num_restarts),
        "TORCHELASTIC_MAX_RESTARTS": str(world.max_restarts),
        TRACEBACK_VARIABLE: world.traceback_dir,
    }


def num_processes(text: str, environment: Mapping[str, str]) -> int:
    """Returns the number of processes: a number, 'cpu' (usable cores), 'gpu', or 'auto' (GPUs if any, else cores).

    Raises:
        ValueError: anything else, a number below 1, or 'gpu' without a GPU.
    """
    if text == "cpu":
        return len(usable_cores())
    if text in ("gpu", "auto"):
        gpus = num_gpus(environment)
        if gpus == 0 and text == "gpu":
            raise ValueError("no GPU found. Give a number, or 'cpu'. Received: 'gpu'")
        return gpus or len(usable_cores())
    if not text.isdecimal() or int(text) < 1:
        raise ValueError(f"must be a number of processes, at least 1, or 'auto', 'cpu' or 'gpu'. Received: {text!r}")
    return int(text)


def num_gpus(environment: Mapping[str, str]) -> int:
    """Returns the number of visible NVIDIA GPUs, from CUDA_VISIBLE_DEVICES or nvidia-smi, without TensorFlow."""
    visible = environment.get("CUDA_VISIBLE_DEVICES")
    if visible is not None:
        names = [name.strip() for name in visible.split(",")]
        # CUDA reads the list up to the first invalid entry.
        wrong = (i for i, name in enumerate(names) if not name or name.startswith("-"))
        return next(wrong, len(names))
    try:
        listed = subprocess.run(
            ["nvidia-smi", "-L"],
            env=dict(environment),
            stdin=subprocess.DEVNULL,
            capture_output=True,
            timeout=_NVIDIA_SMI_TIMEOUT_SECONDS,
            check=True,
        )
    except (OSError, subprocess.SubprocessError):
        return 0
    return sum(line.startswith(b"GPU ") for line in listed.stdout.splitlines())


def check_single_launcher(environment: Mapping[str, str]) -> None:
    """Raises an error inside a process that another launcher has started as a rank.

    Raises:
        ValueError: with the variable and the launcher.
    """
    found = [(name, launcher) for name, launcher in _OTHER_LAUNCHERS.items() if name in environment]
    text = environment.get("TF_CONFIG") or "{}"
    try:
        config = json.loads(text)
    except json.JSONDecodeError:
        config = {}
    machines = Machines.from_environment(environment)
    # Some platforms also write TF_CONFIG: one task for each machine, on which this launcher starts its ranks.
    if isinstance(config, dict) and config.get("cluster") and not (machines and machines.are_the_workers_of(text)):
        found.append(("TF_CONFIG", "another launcher"))
    if found:
        name, launcher = found[0]
        raise ValueError(
            f"this process already is a rank of a job, started by {launcher}: {name} is set. Start the program with "
            f"one launcher, or unset the variable. Received: {name}={environment[name]}"
        )
