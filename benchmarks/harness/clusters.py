"""Contenders with several processes on this machine: environments and cores. Standard library only."""

from __future__ import annotations

import contextlib
import json
import os
import random
import socket
from collections.abc import Callable, Mapping
from pathlib import Path

from harness.workers import Contender, Run

Environments = tuple[Mapping[str, str], ...]
#: Makes the environments of one Horovod job with the given number of processes.
Slots = Callable[[int], Environments]

_LOOPBACK = "127.0.0.1"


def contender(row: str, run: Run, cluster: str, num_processes: int, horovod_slots: Slots) -> Contender:
    """Returns a contender with one core and one thread for each of its processes.

    Args:
        row: row in the tables.
        run: see `Contender`.
        cluster: how its processes are connected: "none", "tensorflow", "horovod" or "torch".
        num_processes: number of processes.
        horovod_slots: makes the environments of "horovod".
    """
    environments: Mapping[str, Slots] = {
        "none": independent,
        "tensorflow": tensorflow_environments,
        "horovod": horovod_slots,
        "torch": torch_environments,
    }
    return Contender(
        row,
        run,
        environments[cluster](num_processes),
        cores=one_core_each(num_processes),
        # Waiting processes of Horovod poll each other for work a thousand times a second.
        freezes=cluster == "horovod",
    )


def one_core_each(num_processes: int) -> tuple[tuple[int, ...], ...]:
    """Returns the core of each process; with fewer cores than processes, cores are reused in turn."""
    cores = sorted(os.sched_getaffinity(0)) if hasattr(os, "sched_getaffinity") else range(os.cpu_count() or 1)
    return tuple((cores[index % len(cores)],) for index in range(num_processes))


def one_thread_each() -> dict[str, str]:
    """Returns the variables with which `strategies.launch` starts a process that has one core."""
    return {
        "TF_NUM_INTRAOP_THREADS": "1",
        # With one thread, a collective that waits for its peers would block the computation, too.
        "TF_NUM_INTEROP_THREADS": "2",
        "OMP_NUM_THREADS": "1",
    }


def independent(num_processes: int) -> Environments:
    """Returns the environments of processes that are not connected."""
    return tuple(one_thread_each() for _ in range(num_processes))


def tensorflow_environments(num_processes: int) -> Environments:
    """Returns the environments of one `TF_CONFIG` cluster, on new ports."""
    workers = [f"{_LOOPBACK}:{port}" for port in free_ports(num_processes)]
    configs = [
        {"cluster": {"worker": workers}, "task": {"type": "worker", "index": rank}} for rank in range(num_processes)
    ]
    return tuple({**one_thread_each(), "TF_CONFIG": json.dumps(config)} for config in configs)


def torch_environments(num_processes: int) -> Environments:
    """Returns the environments of one `torch.distributed` group with `init_method="env://"`, on a new port."""
    [port] = free_ports(1)
    return tuple(
        {
            **one_thread_each(),
            "MASTER_ADDR": _LOOPBACK,
            "MASTER_PORT": str(port),
            "RANK": str(rank),
            "WORLD_SIZE": str(num_processes),
            "GLOO_SOCKET_IFNAME": "lo",
        }
        for rank in range(num_processes)
    )


def free_ports(num_ports: int) -> list[int]:
    """Returns `num_ports` distinct TCP ports on which nobody listens.

    Raises:
        OSError: there are not enough.
    """
    # Below the range of ports of outgoing connections: a contender starts minutes later, and by then such a connection
    # could have taken its port.
    try:
        first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first_outgoing = 32768
    candidates = range(10000, max(first_outgoing, 11000))
    found: list[int] = []
    with contextlib.ExitStack() as held:
        for port in random.SystemRandom().sample(candidates, len(candidates)):
            if len(found) == num_ports:
                return found
            probe = held.enter_context(socket.socket(socket.AF_INET, socket.SOCK_STREAM))
            with contextlib.suppress(OSError):
                probe.bind(("", port))
                found.append(port)
    raise OSError(f"This machine has not {num_ports} free TCP ports from {candidates[0]} to {candidates[-1]}.")
