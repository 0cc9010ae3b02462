"""Rank 0's part in the start of a job: it accepts the connections of the other processes."""

from __future__ import annotations

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Sequence
from typing import Any

from strategies.control_plane import rank_info
from strategies.control_plane.key_value_store import KeyValueStore
from strategies.control_plane.rank_info import MAX_GREETING_BYTES, MORE_TIME, JoinError, RankInfo, decoded, send


class RendezvousServer:
    """The processes that have joined at rank 0, with their connections."""

    def __init__(
        self, info: RankInfo, listener: socket.socket, text: str, problem: str | None, log: Callable[[str], None]
    ) -> None:
        self._info, self._listener, self._log = info, listener, log
        self._texts = {0: text}
        self._where = {0: info.where}
        self._problems = {} if problem is None else {0: problem}
        self._connections: dict[int, socket.socket] = {}
        self._unknown: dict[socket.socket, bytes] = {}

    def wait(self, deadline: float | None, timeout_seconds: float | None) -> tuple[KeyValueStore, list[str]]:
        """Waits until all processes have joined; returns the key-value store, and the texts of all by rank.

        Raises:
            JoinError: a process is missing or has a problem; those that have joined get the same error.
        """
        try:
            self._accept_all(deadline, timeout_seconds)
            if self._problems:
                raise JoinError(" ".join(self._problems[rank] for rank in sorted(self._problems)))
        except JoinError as error:
            self._broadcast({"error": str(error)})
            for connection in self._connections.values():
                connection.close()
            raise
        finally:
            self._listener.close()
            for connection in self._unknown:
                connection.close()
        texts = [self._texts[rank] for rank in range(self._info.world_size)]
        self._broadcast({"texts": texts})
        return KeyValueStore(0, self._info.world_size, self._connections), texts

    def _missing(self) -> list[int]:
        return [rank for rank in range(self._info.world_size) if rank not in self._texts]

    def _accept_all(self, deadline: float | None, timeout_seconds: float | None) -> None:
        began = logged_at = time.monotonic()
        self._listener.setblocking(False)
        with selectors.DefaultSelector() as selector:
            selector.register(self._listener, selectors.EVENT_READ)
            while missing := self._missing():
                now = time.monotonic()
                if deadline is not None and now >= deadline:
                    raise JoinError(
                        f"{_ranks(missing)} of {self._info.world_size} did not join within {timeout_seconds:g} s: look "
                        "at the output there. Start all processes with the same command, and check that they can "
                        f"connect to rank 0 at {_name(self._listener)}. {MORE_TIME}"
                    )
                if now - logged_at >= rank_info.SECONDS_BETWEEN_LINES:
                    logged_at = now
                    limit = "" if timeout_seconds is None else f" of {timeout_seconds:g}"
                    self._log(f"rank 0 has waited {now - began:.0f}{limit} s for {_ranks(missing).lower()}.")
                left = rank_info.SECONDS_BETWEEN_LINES - (now - logged_at)
                left = left if deadline is None else min(left, deadline - now)
                # Known connections before new ones: a process that has left frees its rank.
                ready = [key.fileobj for key, _ in selector.select(max(0.0, left))]
                for each in sorted(ready, key=lambda fileobj: fileobj is self._listener):
                    if each is self._listener:
                        self._accept(selector)
                    else:
                        self._receive(each, selector)

    def _accept(self, selector: selectors.BaseSelector) -> None:
        # The client may have disconnected already.
        with contextlib.suppress(OSError):
            connection, _ = self._listener.accept()
            connection.setblocking(False)
            self._unknown[connection] = b""
            selector.register(connection, selectors.EVENT_READ)

    def _receive(self, connection: Any, selector: selectors.BaseSelector) -> None:
        try:
            data = connection.recv(1 << 16)
        except BlockingIOError:
            return
        except OSError:
            data = b""
        known = next((rank for rank, each in self._connections.items() if each is connection), None)
        if known is not None:
            # A process sends nothing more until all have joined, so this one has left; another may take its rank.
            selector.unregister(connection)
            self._connections.pop(known).close()
            self._texts.pop(known)
            self._problems.pop(known, None)
            return
        self._unknown[connection] += data
        line, newline, _ = self._unknown[connection].partition(b"\n")
        if data and not newline and len(line) <= MAX_GREETING_BYTES:
            return
        greeting = decoded(line) if newline else None
        if greeting is None or not self._register(connection, greeting):
            # A port scanner, or another program.
            selector.unregister(connection)
            connection.close()
        del self._unknown[connection]

    def _register(self, connection: socket.socket, greeting: dict[str, Any]) -> bool:
        rank, size, text = greeting.get("rank"), greeting.get("world_size"), greeting.get("text")
        if not isinstance(rank, int) or not isinstance(size, int) or not isinstance(text, str):
            return False
        where = str(greeting.get("where", ""))
        if size != self._info.world_size or not 0 < rank < size:
            error = (
                f"Rank {rank} of {size} ({where}) has connected to rank 0 of {self._info.world_size}. All processes "
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
        send(connection, {"error": error})
        raise JoinError(error)

    def _broadcast(self, message: dict[str, Any]) -> None:
        for connection in self._connections.values():
            send(connection, message)


def _ranks(ranks: Sequence[int]) -> str:
    return f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _name(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"port {port}" if host in ("0.0.0.0", "::") else f"{host}:{port}"
