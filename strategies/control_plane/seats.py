"""The places of processes in a job, and the lines of JSON by which those that join greet each other."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

_PROTOCOL = "keras-strategies 1"
MAX_GREETING_BYTES = 1 << 20
#: For an answer of rank 0 whose own time is up a little later than that of another.
SLACK_SECONDS = 5.0
#: Between two lines that say whom a process waits for.
SECONDS_BETWEEN_LINES = 10.0

#: The end of errors about those that did not come.
MORE_TIME = "If they only need longer, allow more time with the strategy's timeout_seconds."


class JoinError(ValueError):
    """The processes of a job did not come together; the message says who is missing, or why not, and the mend."""


@dataclass(frozen=True)
class Seat:
    """This process' place in a job.

    Attributes:
        rank: 0 to `world_size` - 1.
        world_size: the number of processes.
        where: names this process for the others, as in "rank 1 on node-b".
    """

    rank: int
    world_size: int
    where: str = ""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends a message, unless the other has left."""
    # Who has left by now is found to have left by the board.
    with contextlib.suppress(OSError):
        connection.settimeout(SLACK_SECONDS)
        connection.sendall(encoded(message))


def read_line(connection: socket.socket) -> bytes:
    """Returns what comes before a line feed, and leaves what follows it: that is the board's."""
    read = bytearray()
    while not read.endswith(b"\n") and len(read) < 64 * MAX_GREETING_BYTES:
        ahead = connection.recv(1 << 16, socket.MSG_PEEK)
        if not ahead:
            raise ConnectionError("closed")
        end = ahead.find(b"\n")
        read += connection.recv(len(ahead) if end < 0 else end + 1)
    return bytes(read)


def encoded(message: dict[str, Any]) -> bytes:
    """Returns a message as a line."""
    return json.dumps({"protocol": _PROTOCOL, **message}).encode() + b"\n"


def decoded(line: bytes) -> dict[str, Any] | None:
    """Returns the message of a line; None if it is not one of ours."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and message.get("protocol") == _PROTOCOL else None
