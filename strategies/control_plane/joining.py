"""The start of a job: all processes connect to rank 0, and exchange who they are.

Rank 0 listens until all have joined; the system refuses later connections. Missing ranks are named in messages during
the wait, and in the error on all processes when time is up. Anyone who reaches the port can join: as with TensorFlow's
own servers, the network has to be trusted.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from strategies.control_plane.key_value_store import KeyValueStore
from strategies.control_plane.listening import listen
from strategies.control_plane.rank_info import JoinError, RankInfo
from strategies.control_plane.rendezvous_client import RendezvousClient
from strategies.control_plane.rendezvous_server import RendezvousServer
from strategies.topology.rank_end import leave_reason


def join_job(
    info: RankInfo,
    address: str | Callable[[], str | None],
    text: str,
    timeout_seconds: float | None,
    *,
    listener: socket.socket | None = None,
    problem: str | None = None,
    log: Callable[[str], None] = lambda line: None,
) -> tuple[KeyValueStore, list[str]]:
    """Joins this process to the others of its job; returns the key-value store, and the texts of all by rank.

    Args:
        info: the rank info of this process.
        address: "host:port" of rank 0, or a function that finds it, and returns None as long as it is not known.
        text: the text that this process sends to all others.
        timeout_seconds: the limit of the wait for the others; None: no limit.
        listener: on rank 0, the socket to which the others connect; it is closed when all have joined. None: a socket
            that listens at `address`.
        problem: the reason why this process cannot take part: all processes raise it as an error.
        log: prints a line for the user.

    Raises:
        JoinError: on every process that has joined, if one is missing or has a problem.
    """
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    try:
        if info.rank == 0:
            listener = listener or listen(str(address() if callable(address) else address))
            server = RendezvousServer(info, listener, text, problem, log)
            return server.wait(deadline, timeout_seconds)
        return RendezvousClient(info, address, log).wait({"text": text, "problem": problem}, deadline, timeout_seconds)
    except JoinError as error:
        leave_reason(info.rank, str(error))
        raise
