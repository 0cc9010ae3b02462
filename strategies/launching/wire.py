"""Messages between launchers: lines of JSON of a limited size, over TCP. Standard library only.

Received data is never run or unpickled. Anyone who reaches the port can join: as with TensorFlow's own servers, the
network has to be trusted.
"""

import contextlib
import json
import select
import socket
import time
from collections.abc import Mapping
from typing import Any

PROTOCOL = "strategies.launch 2"
MAX_MESSAGE_BYTES = 1 << 20


class LinkLostError(Exception):
    """The other side has closed the connection, or sent something that is not a message."""


class Channel:
    """A connection that sends and receives messages without ever waiting for the other side."""

    def __init__(self, connection: socket.socket) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self._socket = connection
        self._received = b""
        self._unsent = b""

    def fileno(self) -> int:
        """Returns the file descriptor, for `select`."""
        return self._socket.fileno()

    @property
    def interest(self) -> int:
        """The events of `select.poll` on which to call `flush` and `receive`."""
        return select.POLLIN | (select.POLLOUT if self._unsent else 0)

    @property
    def own_address(self) -> str:
        """The address of this side."""
        return str(self._socket.getsockname()[0])

    def send(self, message: Mapping[str, Any]) -> None:
        """Sends a message now, or with later calls of `flush`; if the link is lost, a later `receive` raises that."""
        self._unsent += json.dumps({"protocol": PROTOCOL, **message}).encode() + b"\n"
        self.flush()

    def flush(self) -> None:
        """Sends what could not be sent before."""
        try:
            while self._unsent:
                self._unsent = self._unsent[self._socket.send(self._unsent) :]
        except BlockingIOError:
            pass
        except OSError:
            self._unsent = b""

    def receive(self) -> dict[str, Any] | None:
        """Returns the next message, None if none has arrived yet.

        Raises:
            LinkLostError: with the reason; the link cannot be used any more.
        """
        if b"\n" not in self._received:
            try:
                data = self._socket.recv(1 << 16)
            except BlockingIOError:
                return None
            except OSError as error:
                raise LinkLostError(error.strerror or str(error)) from None
            if not data:
                raise LinkLostError("the connection was closed")
            self._received += data
        line, newline, rest = self._received.partition(b"\n")
        if len(line) > MAX_MESSAGE_BYTES:
            raise LinkLostError("a message was too long")
        if not newline:
            return None
        self._received = rest
        return _decoded(line)

    def wait(self, timeout_seconds: float) -> dict[str, Any] | None:
        """Waits for the next message and returns it; None if none arrives within a time.

        Raises:
            LinkLostError: as `receive` does.
        """
        deadline = time.monotonic() + timeout_seconds
        while (message := self.receive()) is None and (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self, self.interest)
            poll.poll(left * 1000)
            self.flush()
        return message

    def finish(self, timeout_seconds: float) -> None:
        """Closes the link after the other side has read everything, or after a time.

        If a connection is closed while it has unread data, it is reset, and its last message may be lost.
        """
        deadline = time.monotonic() + timeout_seconds
        with contextlib.suppress(LinkLostError, OSError):
            while self._unsent and time.monotonic() < deadline:
                self.wait(0.01)
            self._socket.shutdown(socket.SHUT_WR)
            while (left := deadline - time.monotonic()) > 0:
                self.wait(left)
        self.close()

    def close(self) -> None:
        """Closes the link at once."""
        self._socket.close()


def _decoded(line: bytes) -> dict[str, Any]:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        message = None
    if not isinstance(message, dict) or message.get("protocol") != PROTOCOL:
        raise LinkLostError(f"a message was not one of {PROTOCOL}")
    return message
