"""The start of a job: all processes connect to rank 0, and exchange who they are.

Rank 0 listens until all have joined; the system refuses later connections. Missing ranks are named in messages during
the wait, and in the error on all processes when time is up.
"""

from __future__ import annotations

import socket
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from strategies.control_plane.channel import Channel, LinkLostError, connect
from strategies.control_plane.key_value_store import PROTOCOL, KeyValueStore
from strategies.control_plane.listening import listen, split
from strategies.control_plane.rank_info import JoinError, RankInfo
from strategies.control_plane.rendezvous import RETRY_SECONDS, Countdown, RendezvousServer, ask
from strategies.topology.rank_end import leave_reason

#: The time between two messages on the processes that are missing.
SECONDS_BETWEEN_LINES = 10.0
# The extra wait for an answer of rank 0, whose time may be up a little later than that of another process.
_SLACK_SECONDS = 5.0
# Of rank 0's answer, which contains the texts of all.
_MAX_ANSWER_BYTES = 1 << 26
# The last sentence of errors about missing processes.
_MORE_TIME = "If they only need longer, allow more time with the strategy's timeout_seconds."


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
    job = _Joining(info, _Greeting(text, info.where, problem), timeout_seconds, log)
    try:
        if info.rank == 0:
            return job.host(listener or listen(str(address() if callable(address) else address)))
        return job.reach(address if callable(address) else lambda: str(address))
    except JoinError as error:
        leave_reason(info.rank, str(error))
        raise


@dataclass(frozen=True)
class _Greeting:
    """The text of a process, its name in messages, and the reason why it cannot take part, if any."""

    text: str
    where: str
    problem: str | None


class _Joining:
    """The join of this process, on rank 0 and on the others."""

    def __init__(
        self, info: RankInfo, own: _Greeting, timeout_seconds: float | None, log: Callable[[str], None]
    ) -> None:
        self._info, self._own, self._log = info, own, log
        self._timeout_seconds = timeout_seconds
        self._countdown = Countdown(timeout_seconds, SECONDS_BETWEEN_LINES)

    def host(self, listener: socket.socket) -> tuple[KeyValueStore, list[str]]:
        """Waits on rank 0 until all processes have joined."""
        size = self._info.world_size
        with RendezvousServer(listener, PROTOCOL, self._own, size, self._welcome, JoinError) as server:
            while missing := server.missing:
                if self._countdown.left <= 0:
                    raise JoinError(
                        f"{_ranks(missing)} of {size} did not join within {self._timeout_seconds:g} s: look "
                        "at the output there. Start all processes with the same command, and check that they can "
                        f"connect to rank 0 at {_name(listener)}. {_MORE_TIME}"
                    )
                self._log_wait(_ranks(missing).lower())
                server.look(self._countdown.until_next)
            greetings = [server.joined[rank] for rank in range(size)]
            if problems := [each.problem for each in greetings if each.problem is not None]:
                raise JoinError(" ".join(problems))
        texts = [each.text for each in greetings]
        server.broadcast({"texts": texts})
        return KeyValueStore(0, size, server.links), texts

    def _welcome(self, message: dict[str, Any], joined: Mapping[int, _Greeting]) -> tuple[int, _Greeting] | None:
        rank, size, text = message.get("rank"), message.get("world_size"), message.get("text")
        if not isinstance(rank, int) or not isinstance(size, int) or not isinstance(text, str):
            return None
        where, problem = str(message.get("where", "")), message.get("problem")
        if size != self._info.world_size or not 0 < rank < size:
            raise JoinError(
                f"Rank {rank} of {size} ({where}) has connected to rank 0 of {self._info.world_size}. All processes "
                "of a job need the same number of processes: check what starts them."
            )
        if rank in joined:
            raise JoinError(
                f"Two processes are rank {rank} of {size}: {joined[rank].where}, and {where}. Each needs a rank of its "
                "own: check what starts them."
            )
        return rank, _Greeting(text, where, problem if isinstance(problem, str) else None)

    def reach(self, find: Callable[[], str | None]) -> tuple[KeyValueStore, list[str]]:
        """Connects to rank 0 once that listens, and waits for the texts of all."""
        rank, size = self._info.rank, self._info.world_size
        why = "it has not started, or its address is not known yet"
        while True:
            if (address := find()) is not None:
                try:
                    channel = connect(*split(address), PROTOCOL, self._countdown.until_next)
                except OSError as error:
                    why = f"no answer at {address} ({error})"
                else:
                    texts = self._ask(channel)
                    if isinstance(texts, list) and len(texts) == size:
                        return KeyValueStore(rank, size, {0: channel}), texts
                    channel.close()
                    why = f"what answers at {address} is not rank 0 of this job"
            if self._countdown.left <= 0:
                raise JoinError(
                    f"Rank {rank} did not reach rank 0 within {self._timeout_seconds:g} s: {why}. Start all "
                    f"processes with the same command, and look at the output of rank 0. {_MORE_TIME}"
                )
            self._log_wait(f"rank 0: {why}")
            time.sleep(RETRY_SECONDS)

    def _ask(self, channel: Channel) -> object:
        """Returns the texts of all; None without an answer, as from a server that is about to end."""
        channel.max_message_bytes = _MAX_ANSWER_BYTES
        announcement = {"rank": self._info.rank, "world_size": self._info.world_size, **asdict(self._own)}
        try:
            limit = max(0.1, self._countdown.left) + _SLACK_SECONDS
            return ask(channel, announcement, limit, JoinError).get("texts")
        except LinkLostError:
            return None

    def _log_wait(self, what: str) -> None:
        """Logs for what this process waits, if it is time for a line."""
        if self._countdown.is_notice_due():
            limit = "" if self._timeout_seconds is None else f" of {self._timeout_seconds:g}"
            self._log(f"rank {self._info.rank} has waited {self._countdown.waited:.0f}{limit} s for {what}.")


def _ranks(ranks: Sequence[int]) -> str:
    return f"Rank{'s' if len(ranks) > 1 else ''} {', '.join(map(str, ranks))}"


def _name(listener: socket.socket) -> str:
    host, port = listener.getsockname()[:2]
    return f"port {port}" if host in ("0.0.0.0", "::") else f"{host}:{port}"
