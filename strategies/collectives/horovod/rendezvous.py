"""The rendezvous of the processes before Horovod starts, through horovodrun's key-value store.

Horovod waits half a minute for missing processes, and names rank 0 whichever is missing; it takes process sets when it
starts, and hangs if they differ between processes. So all processes join before: errors name the missing ones, and what
all must agree on is compared. Horovod over Gloo has a store; mpirun has none.
"""

from __future__ import annotations

import http.client
import os
import socket
import urllib.error
import urllib.request
from collections.abc import Callable, Mapping

from strategies.control_plane import JoinError, Member, RankInfo, join_job
from strategies.control_plane.hosts import loopback_problem, own_address
from strategies.control_plane.listening import listen

_SCOPE = "keras-strategies"
_REQUEST_SECONDS = 10.0
# The store is on a host of the job, which proxies do not know.
_opener = urllib.request.build_opener(urllib.request.ProxyHandler({}))


def joined(
    timeout_seconds: float | None,
    log: Callable[[str], None],
    environment: Mapping[str, str] | None = None,
) -> Member | None:
    """Joins this process to the others, and returns it as a member of the job.

    It returns None without a store, and in elastic jobs. Rank 0 listens at the address from which it reaches the store,
    until all have joined.

    Args:
        timeout_seconds: the limit of the wait for the others; None for none.
        log: prints a line for the user.
        environment: variables by name; ``os.environ`` if None.

    Raises:
        JoinError: on every process, if one is missing, or cannot be reached from other hosts.
    """
    variables = os.environ if environment is None else environment
    address, port = (variables.get(f"HOROVOD_GLOO_RENDEZVOUS_{name}") for name in ("ADDR", "PORT"))
    if not address or not port or variables.get("HOROVOD_ELASTIC", "0") != "0":
        return None
    rank, size = int(variables["HOROVOD_RANK"]), int(variables["HOROVOD_SIZE"])
    url = f"http://{address}:{port}/{_SCOPE}/rank_0"
    own = own_address(address, int(port))
    problem = loopback_problem(rank, own) if int(variables.get("HOROVOD_LOCAL_SIZE", size)) < size else None
    info = RankInfo(rank, size, f"process {os.getpid()} on {socket.gethostname()}")
    if rank > 0:
        store, _ = join_job(info, lambda: _read(url), "", timeout_seconds, problem=problem, log=log)
        return Member(rank, size, store, timeout_seconds or 0.0)
    listener = listen(f"{own or address}:0")
    host, free_port = listener.getsockname()[:2]
    try:
        put = urllib.request.Request(url, f"{own or host}:{free_port}".encode(), method="PUT")
        _opener.open(put, timeout=_REQUEST_SECONDS).close()
    except (OSError, http.client.HTTPException) as error:
        listener.close()
        raise JoinError(
            f"Rank 0 cannot reach horovodrun's store at {address}:{port}: {error}. Has horovodrun ended, or does a "
            "firewall keep them apart?"
        ) from None
    store, _ = join_job(info, "", "", timeout_seconds, listener=listener, problem=problem, log=log)
    return Member(rank, size, store, timeout_seconds or 0.0)


def _read(url: str) -> str | None:
    """Returns the address of rank 0, or None while the store does not have it: the store answers at once."""
    try:
        with _opener.open(url, timeout=_REQUEST_SECONDS) as response:
            return str(response.read().decode())
    except (OSError, http.client.HTTPException):
        return None
