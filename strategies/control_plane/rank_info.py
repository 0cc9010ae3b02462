"""The rank info of processes that join a job, and the lines of JSON in which they exchange it."""

from __future__ import annotations

import contextlib
import json
import socket
from dataclasses import dataclass
from typing import Any

_PROTOCOL = "keras-strategies 1"
MAX_GREETING_BYTES = 1 << 20
#: The extra wait for an answer of rank 0, whose time may be up a little later than that of another process.
SLACK_SECONDS = 5.0
#: The time between two messages on the processes that are missing.
SECONDS_BETWEEN_LINES = 10.0

#: The last sentence of errors about missing processes.
MORE_TIME = "If they only need longer, allow more time with the strategy's timeout_seconds."


class JoinError(ValueError):
    """The processes of a job did not join; the message names the missing ones or the reason, and the fix."""


@dataclass(frozen=True)
class RankInfo:
    """The rank info of this process in a job.

    Attributes:
        rank: 0 to `world_size` - 1.
        world_size: the number of processes.
        where: names this process in messages of the others, as in "rank 1 on node-b".
    """

    rank: int
    world_size: int
    where: str = ""


def send(connection: socket.socket, message: dict[str, Any]) -> None:
    """Sends a message, unless the other process has left."""
    # `KeyValueStore` will find that it has left.
    with contextlib.suppress(OSError):
        connection.settimeout(SLACK_SECONDS)
        connection.sendall(encoded(message))


def read_line(connection: socket.socket) -> bytes:
    """Returns the bytes up to a line feed, and leaves the following bytes unread, for `KeyValueStore`."""
    read = bytearray()
    while not read.endswith(b"\n") and len(read) < 64 * MAX_GREETING_BYTES:
        ahead = connection.recv(1 << 16, socket.MSG_PEEK)
        if not ahead:
            raise ConnectionError("closed")
        end = ahead.find(b"\n")
        read += connection.recv(len(ahead) if end < 0 else end + 1)
    return bytes(read)


def encoded(message: dict[str, Any]) -> bytes:
    """Returns a message as a line of JSON."""
    return json.dumps({"protocol": _PROTOCOL, **message}).encode() + b"\n"


def decoded(line: bytes) -> dict[str, Any] | None:
    """Returns the message of a line; None if it is not one of ours."""
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and message.get("protocol") == _PROTOCOL else None
