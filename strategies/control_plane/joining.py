"""The start of a job: all processes connect to rank 0, tell who they are, and learn who the others are.

Rank 0 listens until all have come, and then no more: later connections are refused by the system. Who is missing is
named while the others wait, and in the error on all of them when time is up. Anyone who reaches the port can join: as
with TensorFlow's own servers, the network has to be trusted.
"""

from __future__ import annotations

import contextlib
import ipaddress
import json
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

from strategies.control_plane.board import Board
from strategies.topology.port_holders import holder_of
from strategies.topology.rank_end import leave_reason

_PROTOCOL = "keras-strategies 1"
_MAX_GREETING_BYTES = 1 << 20
_RETRY_SECONDS = 0.1
#: Between two lines that say whom a process waits for.
SECONDS_BETWEEN_LINES = 10.0
# For an answer of rank 0 whose own time is up a little later than ours.
_SLACK_SECONDS = 5.0


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
            gathering = _Gathering(seat, listener, text, problem, say)
            return gathering.wait(deadline, timeout_seconds)
        return _Arrival(seat, address, say).wait({"text": text, "problem": problem}, deadline, timeout_seconds)
    except JoinError as error:
        leave_reason(seat.rank, str(error))
        raise


def listen(address: str) -> socket.socket:
    """Returns a socket that listens at "host:port", on all interfaces only if the host is not one of this machine's.

    Raises:
        JoinError: the port is in use; the message names the program that uses it, if that can be known.
    """
    host, port = _split(address)
    try:
        if _is_own(host):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return _reusable(socket.socket(family), (host, port))
        return _reusable(socket.socket(socket.AF_INET), ("", port))
    except OSError as error:
        user = holder_of(port)
        raise JoinError(
            f"Rank 0 cannot listen at {address}: {error}."
            f"{f' The port is used by {user}.' if user else ''} End that program, or give the processes other ports."
        ) from None


def _reusable(made: socket.socket, where: tuple[str, int]) -> socket.socket:
    # The connections inherit it, so that another server of this process can listen there later.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(where)
        made.listen(1024)
    except OSError:
        made.close()
        raise
    return made


def _is_own(host: str) -> bool:
    """True if this is an IP address of one of this machine's interfaces."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


def _split(address: str) -> tuple[str, int]:
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


class _Gathering:
    """Rank 0's side: the connections of those that have come."""

    def __init__(
        self, seat: Seat, listener: socket.socket, text: str, problem: str | None, say: Callable[[str], None]
    ) -> None:
        self._seat, self._listener, self._say = seat, listener, say
        self._texts = {0: text}
        self._where = {0: seat.where}
        self._problems = {} if problem is None else {0: problem}
        self._connections: dict[int, socket.socket] = {}
        self._unknown: dict[socket.socket, bytes] = {}

    def wait(self, deadline: float | None, timeout_seconds: float | None) -> tuple[Board, list[str]]:
        """Returns when all are there; on failure, tells the error to those that are."""
        try:
            self._gather(deadline, timeout_seconds)
            if self._problems:
                raise JoinError(" ".join(self._problems[rank] for rank in sorted(self._problems)))
        except JoinError as error:
            self._tell({"error": str(error)})
            for connection in self._connections.values():
                connection.close()
            raise
        finally:
            self._listener.close()
            for connection in self._unknown:
                connection.close()
        texts = [self._texts[rank] for rank in range(self._seat.world_size)]
        self._tell({"texts": texts})
        return Board(0, self._seat.world_size, self._connections), texts

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._seat.world_size) if rank not in self._texts]

    def _gather(self, deadline: float | None, timeout_seconds: float | None) -> None:
        began = said = time.monotonic()
        self._listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while missing := self._missing():
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    raise JoinError(
                        f"{_ranks(missing)} of {self._seat.world_size} did not come within {timeout_seconds:g} s: look "
                        "at the output there. Start all processes with the same command, and check that they can "
                        f"connect to rank 0 at {_name(self._listener)}. {_MORE_TIME}"
                    )
                if now - said >= SECONDS_BETWEEN_LINES:
                    said = now
                    limit = "" if timeout_seconds is None else f" of {timeout_seconds:g}"
                    self._say(f"rank 0 has waited {now - began:.0f}{limit} s for {_ranks(missing).lower()}.")
                left = SECONDS_BETWEEN_LINES - (now - said)
                left = left if deadline is None else min(left, deadline - now)
                # Known ones first: a process that has left frees its rank.
                ready = [key.fileobj for key, _ in selector.select(max(0.0, left))]
                for each in sorted(ready, key=lambda fileobj: fileobj is self._listener):
                    if each is self._listener:
                        self._accept(selector)
                    else:
                        self._hear(each, selector)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        # The client may have disconnected already.
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._unknown[connection] = b""
            selector.register(connection, selectors.EVENT_READ)

    def _hear(self, connection: Any, selector: selectors.BaseSelector) -> None:
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        known = next((rank for rank, each in self._connections.items() if each is connection), None)
        if known is not None:
            # It says nothing more before all are there, so it has left; another may come in its place.
            selector.unregister(connection)
            self._connections.pop(known).close()
            self._texts.pop(known)
            self._problems.pop(known, None)
            return
        self._unknown[connection] += data
        line, newline, _ = self._unknown[connection].partition(b"\n")
        if data and not newline and len(line) <= _MAX_GREETING_BYTES:
            return
        greeting = _decoded(line) if newline else None
        if greeting is None or not self._welcome(connection, greeting):
            # A port scanner, or a process that this job does not have.
            selector.unregister(connection)
            connection.close()
        del self._unknown[connection]

    def _welcome(self, connection: socket.socket, greeting: dict[str, Any]) -> bool:
        rank, size, text = greeting.get("rank"), greeting.get("world_size"), greeting.get("text")
        if not isinstance(rank, int) or not isinstance(size, int) or not isinstance(text, str):
            return False
        where = str(greeting.get("where", ""))
        if size != self._seat.world_size or not 0 < rank < size:
            error = (
                f"Rank {rank} of {size} ({where}) has connected to rank 0 of {self._seat.world_size}. All processes "
                "of a job need the same number of processes: check what starts them."
            )
        elif rank in self._texts:
            error = (
                f"Two processes are rank {rank} of {size}: {self._where[rank]}, and {where}. Each needs a rank of its "
                "own: check what starts them."
            )
        else:
            self._texts[rank], self._where[rank], self._connections[rank] = text, where, connection
            if isinstance(greeting.get("problem"), str):
                self._problems[rank] = greeting["problem"]
            return True
        _send(connection, {"error": error})
        raise JoinError(error)

    def _tell(self, message: dict[str, Any]) -> None:
        for connection in self._connections.values():
            _send(connection, message)


class _Arrival:
    """The side of a process that is not rank 0."""

    def __init__(self, seat: Seat, address: str | Callable[[], str | None], say: Callable[[str], None]) -> None:
        self._seat, self._say = seat, say
        self._find = address if callable(address) else lambda: str(address)
        self._why = "it has not started, or its address is not known yet"

    def wait(
        self, told: dict[str, Any], deadline: float | None, timeout_seconds: float | None
    ) -> tuple[Board, list[str]]:
        """Returns when all are there."""
        began = said = time.monotonic()
        who = f"rank {self._seat.rank}"
        while True:
            now = time.monotonic()
            connection = self._connect(deadline)
            if connection is not None:
                answer = self._ask(connection, told, deadline)
                if isinstance(answer, list):
                    return Board(self._seat.rank, self._seat.world_size, {0: connection}), answer
                connection.close()
            if deadline is not None and now >= deadline:
                raise JoinError(
                    f"{who.capitalize()} did not reach rank 0 within {timeout_seconds:g} s: {self._why}. Start all "
                    f"processes with the same command, and look at the output of rank 0. {_MORE_TIME}"
                )
            if now - said >= SECONDS_BETWEEN_LINES:
                said = now
                limit = "" if timeout_seconds is None else f" of {timeout_seconds:g}"
                self._say(f"{who} has waited {now - began:.0f}{limit} s for rank 0: {self._why}.")
            time.sleep(_RETRY_SECONDS)

    def _connect(self, deadline: float | None) -> socket.socket | None:
        address = self._find()
        if address is None:
            return None
        left = SECONDS_BETWEEN_LINES if deadline is None else min(SECONDS_BETWEEN_LINES, deadline - time.monotonic())
        try:
            connection = socket.create_connection(_split(address), timeout=max(0.1, left))
        except OSError as error:
            self._why = f"no answer at {address} ({error})"
            return None
        # Over loopback, a connection to a port without a listener can connect to itself.
        if connection.getsockname() == connection.getpeername():
            connection.close()
            return None
        self._why = f"what answers at {address} is not rank 0 of this job"
        return connection

    def _ask(self, connection: socket.socket, told: dict[str, Any], deadline: float | None) -> list[str] | None:
        """Returns what all have told; None if there is no answer, as of a server that was about to end."""
        seat = self._seat
        greeting = {"rank": seat.rank, "world_size": seat.world_size, "where": seat.where, **told}
        try:
            connection.settimeout(None if deadline is None else max(0.1, deadline - time.monotonic()) + _SLACK_SECONDS)
            connection.sendall(_encoded(greeting))
            answer = _read_line(connection)
        except OSError:
            return None
        message = _decoded(answer)
        if message is None:
            return None
        if "error" in message:
            connection.close()
            raise JoinError(str(message["error"]))
        texts = message.get("texts")
        return texts if isinstance(texts, list) and len(texts) == seat.world_size else None


_MORE_TIME = "If they only need longer, allow more time with the strategy's timeout_seconds."


def _ranks(ranks: Sequence[int]) -> str:
    return f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _name(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"port {port}" if host in ("0.0.0.0", "::") else f"{host}:{port}"


def _send(connection: socket.socket, message: dict[str, Any]) -> None:
    # Who has left by now is found to have left by the board.
    with contextlib.suppress(OSError):
        connection.settimeout(_SLACK_SECONDS)
        connection.sendall(_encoded(message))


def _read_line(connection: socket.socket) -> bytes:
    """Returns what comes before a line feed, and leaves what follows it: that is the board's."""
    read = bytearray()
    while not read.endswith(b"\n") and len(read) < 64 * _MAX_GREETING_BYTES:
        ahead = connection.recv(1 << 16, socket.MSG_PEEK)
        if not ahead:
            raise ConnectionError("closed")
        end = ahead.find(b"\n")
        read += connection.recv(len(ahead) if end < 0 else end + 1)
    return bytes(read)


def _encoded(message: dict[str, Any]) -> bytes:
    return json.dumps({"protocol": _PROTOCOL, **message}).encode() + b"\n"


def _decoded(line: bytes) -> dict[str, Any] | None:
    try:
        message = json.loads(line)
    except (ValueError, RecursionError):
        return None
    return message if isinstance(message, dict) and message.get("protocol") == _PROTOCOL else None
