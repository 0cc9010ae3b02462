"""Connections between processes and between launchers: lines of JSON of a limited size, over TCP.

Standard library only. Received data is never run or unpickled. Anyone who reaches the port can connect: as with
TensorFlow's own servers, the network has to be trusted.
"""

from __future__ import annotations

import collections
import contextlib
import json
import select
import socket
import threading
import time
from collections.abc import Mapping
from errno import ECONNREFUSED
from os import strerror
from typing import Any

MAX_MESSAGE_BYTES = 1 << 20
_READ_BYTES = 1 << 16
# `poll` takes no infinite time.
_POLL_SECONDS = 3600.0


class LinkLostError(Exception):
    """The other side has closed the connection, or sent something that is not a message."""


class Channel:
    """A connection that sends and receives messages without ever waiting for the other side.

    One thread calls `flush` and `receive`; other threads may call `queue`.

    Args:
        connection: the connected socket.
        protocol: the name that marks the messages of both sides; others end the connection.
    """

    def __init__(self, connection: socket.socket, protocol: str) -> None:
        connection.setblocking(False)
        with contextlib.suppress(OSError):
            connection.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        #: The size of the longest message; a longer one ends the connection.
        self.max_message_bytes = MAX_MESSAGE_BYTES
        self._socket, self._protocol = connection, protocol
        self._lines: collections.deque[bytes] = collections.deque()
        self._unfinished = bytearray()
        self._unsent = bytearray()
        # For `_unsent`: `socket.send` does not allow that it grows meanwhile.
        self._lock = threading.Lock()

    def fileno(self) -> int:
        """Returns the file descriptor, for `select`."""
        return self._socket.fileno()

    @property
    def has_message(self) -> bool:
        """True if `receive` returns a message without reading from the connection."""
        return bool(self._lines)

    @property
    def num_unsent_bytes(self) -> int:
        """The number of bytes that are still to be sent, by `flush`."""
        return len(self._unsent)

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
        self.queue(encoded(self._protocol, message))
        self.flush()

    def queue(self, line: bytes) -> None:
        """Leaves a line that `encoded` has made to the next call of `flush`."""
        with self._lock:
            self._unsent += line

    def flush(self) -> None:
        """Sends what could not be sent before."""
        with self._lock:
            try:
                while self._unsent:
                    del self._unsent[: self._socket.send(self._unsent)]
            except BlockingIOError:
                pass
            except OSError:
                self._unsent.clear()

    def receive(self) -> dict[str, Any] | None:
        """Returns the next message, None if none has arrived yet.

        Raises:
            LinkLostError: with the reason; the link cannot be used any more.
        """
        if not self._lines:
            try:
                data = self._socket.recv(_READ_BYTES)
            except BlockingIOError:
                return None
            except OSError as error:
                raise LinkLostError(error.strerror or str(error)) from None
            if not data:
                raise LinkLostError("the connection was closed")
            first, *others = data.split(b"\n")
            self._unfinished += first
            if len(self._unfinished) > self.max_message_bytes:
                raise LinkLostError("a message was too long")
            if not others:
                return None
            self._lines += [bytes(self._unfinished), *others[:-1]]
            self._unfinished = bytearray(others[-1])
        return self._decoded(self._lines.popleft())

    def wait(self, timeout_seconds: float) -> dict[str, Any] | None:
        """Waits for the next message and returns it; None if none arrives within a time.

        Raises:
            LinkLostError: as `receive` does.
        """
        deadline = time.monotonic() + timeout_seconds
        while (message := self.receive()) is None and (left := deadline - time.monotonic()) > 0:
            poll = select.poll()
            poll.register(self, self.interest)
            poll.poll(min(left, _POLL_SECONDS) * 1000)
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

    def _decoded(self, line: bytes) -> dict[str, Any]:
        try:
            message = json.loads(line)
        except (ValueError, RecursionError):
            message = None
        if not isinstance(message, dict) or message.get("protocol") != self._protocol:
            raise LinkLostError(f"a message was not one of {self._protocol}")
        return message


def encoded(protocol: str, message: Mapping[str, Any]) -> bytes:
    """Returns a message as a line of JSON."""
    return json.dumps({"protocol": protocol, **message}).encode() + b"\n"


def connect(host: str, port: int, protocol: str, timeout_seconds: float) -> Channel:
    """Connects to an address.

    Raises:
        OSError: it cannot be reached within the time.
    """
    connection = socket.create_connection((host, port), timeout=max(0.1, timeout_seconds))
    # Over loopback, a connection to a port without a listener can connect to itself.
    if connection.getsockname() == connection.getpeername():
        connection.close()
        raise ConnectionRefusedError(ECONNREFUSED, strerror(ECONNREFUSED))
    return Channel(connection, protocol)
