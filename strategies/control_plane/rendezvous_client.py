"""The join of a process that is not rank 0: it connects to rank 0 once that listens, and gets the texts of all."""

from __future__ import annotations

import socket
import time
from collections.abc import Callable
from typing import Any

from strategies.control_plane import rank_info
from strategies.control_plane.key_value_store import KeyValueStore
from strategies.control_plane.listening import split
from strategies.control_plane.rank_info import (
    MORE_TIME,
    SLACK_SECONDS,
    JoinError,
    RankInfo,
    decoded,
    encoded,
    read_line,
)

_RETRY_SECONDS = 0.1


class RendezvousClient:
    """The join of a process that is not rank 0."""

    def __init__(self, info: RankInfo, address: str | Callable[[], str | None], log: Callable[[str], None]) -> None:
        self._info, self._log = info, log
        self._find = address if callable(address) else lambda: str(address)
        self._why = "it has not started, or its address is not known yet"

    def wait(
        self, fields: dict[str, Any], deadline: float | None, timeout_seconds: float | None
    ) -> tuple[KeyValueStore, list[str]]:
        """Waits until all processes have joined; returns the key-value store, and the texts of all by rank."""
        began = logged_at = time.monotonic()
        who = f"rank {self._info.rank}"
        while True:
            now = time.monotonic()
            connection = self._connect(deadline)
            if connection is not None:
                answer = self._ask(connection, fields, deadline)
                if isinstance(answer, list):
                    return KeyValueStore(self._info.rank, self._info.world_size, {0: connection}), answer
                connection.close()
            if deadline is not None and now >= deadline:
                raise JoinError(
                    f"{who.capitalize()} did not reach rank 0 within {timeout_seconds:g} s: {self._why}. Start all "
                    f"processes with the same command, and look at the output of rank 0. {MORE_TIME}"
                )
            if now - logged_at >= rank_info.SECONDS_BETWEEN_LINES:
                logged_at = now
                limit = "" if timeout_seconds is None else f" of {timeout_seconds:g}"
                self._log(f"{who} has waited {now - began:.0f}{limit} s for rank 0: {self._why}.")
            time.sleep(_RETRY_SECONDS)

    def _connect(self, deadline: float | None) -> socket.socket | None:
        address = self._find()
        if address is None:
            return None
        left = rank_info.SECONDS_BETWEEN_LINES
        left = left if deadline is None else min(left, deadline - time.monotonic())
        try:
            connection = socket.create_connection(split(address), timeout=max(0.1, left))
        except OSError as error:
            self._why = f"no answer at {address} ({error})"
            return None
        # Over loopback, a connection to a port without a listener can connect to itself.
        if connection.getsockname() == connection.getpeername():
            connection.close()
            return None
        self._why = f"what answers at {address} is not rank 0 of this job"
        return connection

    def _ask(self, connection: socket.socket, fields: dict[str, Any], deadline: float | None) -> list[str] | None:
        """Returns the texts of all processes by rank; None without an answer, as from a server that is about to end."""
        info = self._info
        greeting = {"rank": info.rank, "world_size": info.world_size, "where": info.where, **fields}
        try:
            connection.settimeout(None if deadline is None else max(0.1, deadline - time.monotonic()) + SLACK_SECONDS)
            connection.sendall(encoded(greeting))
            answer = read_line(connection)
        except OSError:
            return None
        message = decoded(answer)
        if message is None:
            return None
        if "error" in message:
            connection.close()
            raise JoinError(str(message["error"]))
        texts = message.get("texts")
        return texts if isinstance(texts, list) and len(texts) == info.world_size else None
