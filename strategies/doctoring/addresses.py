"""Checks of the ranks' addresses: this rank's own port, and all host names."""

from __future__ import annotations

import contextlib
import socket
import threading
import time
from collections.abc import Callable, Iterable

from strategies.control_plane.hosts import loopback_problem
from strategies.doctoring.report import Report, words
from strategies.topology.cluster import Cluster


def in_parallel(check: Callable[[str], object], items: Iterable[str], timeout_seconds: float) -> dict[str, str]:
    """Returns the errors by item, for items whose ``check`` raised an OSError or did not return in time."""
    wrong = dict.fromkeys(items, f"no answer in {timeout_seconds:g} s")

    def ask(item: str) -> None:
        with contextlib.suppress(KeyError):
            try:
                check(item)
                del wrong[item]
            except OSError as reason:
                wrong[item] = str(reason)

    # Daemon threads: a name server that does not answer must not block the end of the interpreter.
    threads = [threading.Thread(target=ask, args=[item], daemon=True) for item in list(wrong)]
    end = time.monotonic() + timeout_seconds
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join(max(0.0, end - time.monotonic()))
    return dict(wrong)


def _host_and_port(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def connect(address: str) -> None:
    """Connects to `host:port`, and closes the connection.

    Raises:
        OSError: the connection failed.
    """
    socket.create_connection(_host_and_port(address), timeout=3.0).close()


def check_addresses(cluster: Cluster, report: Report, timeout_seconds: float = 10.0) -> bool:
    """Returns True if this rank's own port is free and all host names can be resolved; reports problems."""
    if not cluster.addresses:
        # Horovod's processes exchange the addresses that their host names resolve to.
        problem = loopback_problem(cluster.rank) if cluster.local_size < cluster.world_size else None
        if problem is not None:
            report.problem(problem)
        return problem is None
    num_problems = len(report.found["problems"])
    own = cluster.addresses[cluster.rank]
    port = _host_and_port(own)[1]
    with socket.socket() as probe:
        # As servers do: ignore connections that were closed recently.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            report.problem(
                f"rank {cluster.rank} cannot listen at {own}: {error}. End the program that uses the port "
                f"(`ss -ltnp 'sport = :{port}'` shows it), or set another port, on all ranks, in {cluster.source}."
            )
    hosts = dict.fromkeys(_host_and_port(address)[0] for address in cluster.addresses)
    for host, why in in_parallel(lambda host: socket.getaddrinfo(host, None), hosts, timeout_seconds).items():
        ranks = [rank for rank, address in enumerate(cluster.addresses) if _host_and_port(address)[0] == host]
        report.problem(
            f"the host name {host!r} of rank {words(ranks)} cannot be resolved: {why}. Use its IP address in "
            f"{cluster.source}, or define the name (/etc/hosts, DNS)."
        )
    return len(report.found["problems"]) == num_problems
