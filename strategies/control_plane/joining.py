"""The start of a job: all processes connect to rank 0, tell who they are, and learn who the others are.

Rank 0 listens until all have come, and then no more: later connections are refused by the system. Who is missing is
named while the others wait, and in the error on all of them when time is up. Anyone who reaches the port can join: as
with TensorFlow's own servers, the network has to be trusted.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable

from strategies.control_plane.arrival import Arrival
from strategies.control_plane.board import Board
from strategies.control_plane.gathering import Gathering
from strategies.control_plane.listening import listen
from strategies.control_plane.seats import JoinError, Seat
from strategies.topology.rank_end import leave_reason


def join_job(
    seat: Seat,
    address: str | Callable[[], str | None],
    text: str,
    timeout_seconds: float | None,
    *,
    listener: socket.socket | None = None,
    problem: str | None = None,
    say: Callable[[str], None] = lambda line: None,
) -> tuple[Board, list[str]]:
    """Joins this process to the others of its job; returns the board, and what every process told, by rank.

    Args:
        seat: who this is.
        address: "host:port" of rank 0, or a function that finds it, and returns None as long as it is not known.
        text: what this process tells the others.
        timeout_seconds: the limit of the wait for the others; None for none.
        listener: on rank 0, the socket on which the others connect, which is closed when all have come; made at
            `address` if None.
        problem: what keeps this process from taking part: told to all, and raised by all of them.
        say: prints a line for the user.

    Raises:
        JoinError: on every process that has come, if one is missing or has a problem.
    """
    deadline = None if timeout_seconds is None else time.monotonic() + timeout_seconds
    try:
        if seat.rank == 0:
            listener = listener or listen(str(address() if callable(address) else address))
            gathering = Gathering(seat, listener, text, problem, say)
            return gathering.wait(deadline, timeout_seconds)
        return Arrival(seat, address, say).wait({"text": text, "problem": problem}, deadline, timeout_seconds)
    except JoinError as error:
        leave_reason(seat.rank, str(error))
        raise
