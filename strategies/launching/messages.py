"""The messages that launchers exchange, and their conversion to JSON and back. Standard library only.

The launchers of all nodes send events to that of node 0, which decides, and sends commands to all.
"""

import enum
from dataclasses import dataclass
from typing import Any

from strategies.control_plane.message import Message

#: Marks the messages of launchers.
PROTOCOL = "strategies.launch 3"


class Kind(enum.StrEnum):
    """The kinds of causes for which ranks are ended."""

    #: A rank failed.
    RANK = "rank"
    #: A rank did not end within the grace period after another one was preempted.
    LATE = "late"
    #: All ranks that have not ended were stopped (SIGSTOP) for too long.
    STOPPED = "stopped"
    #: A rank could not be started.
    START = "start"
    #: A rank ended with `PREEMPTED`.
    PREEMPTED = "preempted"
    #: A launcher was asked to stop by a signal.
    SIGNAL = "signal"
    #: A node is gone: its launcher has ended, or is silent.
    NODE = "node"


class Outcome(enum.StrEnum):
    """The result of all ranks of a node."""

    #: All ended with 0.
    DONE = "done"
    #: All ended with 0 or `PREEMPTED`, at least one with the latter.
    PREEMPTED = "preempted"
    FAILED = "failed"


@dataclass(frozen=True)
class Node(Message):
    """One node as it announces itself.

    Args:
        node_rank: its --node-rank, which identifies the node for the life of the job.
        num_nodes: its --nnodes.
        host: the address at which the others reach it.
        ports: a port for each of its processes.
        hostname, pid: the host and process of its launcher, for messages.
        token: a random word that distinguishes this launcher from all others.
    """

    node_rank: int
    num_nodes: int
    host: str
    ports: tuple[int, ...]
    hostname: str = ""
    pid: int = 0
    token: str = ""

    @property
    def addresses(self) -> tuple[str, ...]:
        """The "host:port" of its processes; an IPv6 address is in brackets."""
        host = f"[{self.host}]" if ":" in self.host else self.host
        return tuple(f"{host}:{port}" for port in self.ports)

    @property
    def name(self) -> str:
        """Its rank and host name, for messages."""
        return f"node {self.node_rank} ({self.hostname or self.host})"

    def check(self) -> None:
        """Raises ValueError for impossible ranks and ports."""
        if not self.ports or not 0 <= self.node_rank < self.num_nodes or not all(0 < p < 65536 for p in self.ports):
            raise ValueError(f"Not a node. Received: {self}")


@dataclass(frozen=True)
class Cause(Message):
    """The reason for which ranks are ended.

    Args:
        kind: see `Kind`.
        node_rank: the rank of the node where it happened.
        node: the name of that node.
        rank, pid: the rank and its process, for kinds that concern a rank.
        status: the exit code of the rank, or minus the signal that killed it; the signal to a launcher.
        detail: further words, for kinds that need them.
        reason: the exit reason of the rank's program, in sentences; empty if it left none.
    """

    kind: Kind
    node_rank: int
    node: str
    rank: int = 0
    pid: int = 0
    status: int = 0
    detail: str = ""
    reason: str = ""


@dataclass(frozen=True)
class Incident(Message):
    """Event: something happened on a node that may end the ranks of the job; `urgent` if they must end at once."""

    round: int
    cause: Cause
    urgent: bool = False


@dataclass(frozen=True)
class Standstill(Message):
    """Event: all ranks of a node that have not ended were stopped for too long; without a cause: one runs again."""

    round: int
    cause: Cause | None


@dataclass(frozen=True)
class Ended(Message):
    """Event: all ranks of a node have ended. `ports` are free ports for the next round."""

    round: int
    outcome: Outcome
    ports: tuple[int, ...]


@dataclass(frozen=True)
class Start(Message):
    """Command: start the ranks.

    Args:
        round: the number of this start, from 0.
        num_restarts: the number of counted restarts so far; max_restarts: its limit.
        nodes: all nodes that take part, in the order of their ranks.
        grace_seconds: time from SIGTERM to SIGKILL after a rank of this round has failed.
        reason: the reason for a restart, printed by every launcher; empty for the first start.
        is_watched: True if the ranks are to report their status.
    """

    round: int
    num_restarts: int
    max_restarts: int
    nodes: tuple[Node, ...]
    grace_seconds: float
    reason: str = ""
    is_watched: bool = False


@dataclass(frozen=True)
class Stop(Message):
    """Command: wait for the ranks to end, after SIGTERM if `terminate`; kill them after `grace_seconds`."""

    round: int
    terminate: bool
    grace_seconds: float


@dataclass(frozen=True)
class Finish(Message):
    """Command: end this launcher. Its part of the job is over; without a cause all ranks have ended with 0."""

    cause: Cause | None


@dataclass(frozen=True)
class Shared(Message):
    """A text about the status of the job, in both directions. Nothing is decided from it.

    Args:
        round: the number of the start to which it belongs.
        key, number: its place in the folder of the status.
        part, num_parts: its part of a long text, from 0; the parts follow each other.
        text: the text.
    """

    round: int
    key: str
    number: int
    part: int
    num_parts: int
    text: str


Event = Incident | Standstill | Ended
Command = Start | Stop | Finish


def packed(message: Event | Command | Shared) -> dict[str, Any]:
    """Returns a message as `Channel.send` takes it."""
    return {"type": type(message).__name__, "fields": message.to_json()}


def unpacked_event(message: dict[str, Any]) -> Event | Shared:
    """Returns the event, or the shared text, in a received message.

    Raises:
        ValueError: it is not an event.
    """
    for kind in (Incident, Standstill, Ended, Shared):
        if message.get("type") == kind.__name__:
            return kind.from_json(message.get("fields"))
    raise ValueError(f"Not an event. Received: {message!r}")


def unpacked_command(message: dict[str, Any]) -> Command | Shared:
    """Returns the command, or the shared text, in a received message.

    Raises:
        ValueError: it is not a command.
    """
    for kind in (Start, Stop, Finish, Shared):
        if message.get("type") == kind.__name__:
            return kind.from_json(message.get("fields"))
    raise ValueError(f"Not a command. Received: {message!r}")
