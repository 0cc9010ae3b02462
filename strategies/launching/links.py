"""The links between the launchers of a job: a star with node 0, which decides, at its center. Standard library only.

Every launcher sends a heartbeat each second. One whose connection closes, or that is silent, counts as gone.
"""

import collections
import time
from collections.abc import Mapping, Sequence
from typing import Protocol

from strategies.control_plane.channel import Channel, LinkLostError
from strategies.launching.coordinator import Commands, Coordinator
from strategies.launching.messages import (
    Cause,
    Command,
    Ended,
    Event,
    Finish,
    Kind,
    Shared,
    Start,
    Stop,
    packed,
    unpacked_command,
    unpacked_event,
)

_HEARTBEAT_SECONDS = 1.0
_CLOSE_SECONDS = 2.0
_HEARTBEAT = {"type": "Heartbeat"}


class Team(Protocol):
    """The job, as the launcher of a node sees it."""

    def send_event(self, event: Event) -> None:
        """Reports an event of this node."""

    def listen(self) -> list[Command]:
        """Returns the commands for this node that have arrived; never waits. Call it at least once a second."""

    def interests(self) -> Mapping[int, int]:
        """File descriptors and the events of `select.poll` on which to call `listen`."""

    def seconds_left(self) -> float | None:
        """Returns the time until `listen` must be called; None if there is no limit."""

    def close(self) -> None:
        """Closes the links, after everything has been sent."""


class Relay(Protocol):
    """The status of the job on this node; the launchers share a part of it."""

    def outgoing(self) -> Sequence[Shared]:
        """Returns what the others do not have yet."""

    def take(self, shared: Shared) -> None:
        """Takes what another launcher has shared."""


class _Heartbeat:
    """The heartbeats of one link: sends ours, and detects that the other side has been silent for too long."""

    def __init__(self, channel: Channel, timeout_seconds: float) -> None:
        self.channel = channel
        self._timeout_seconds = timeout_seconds
        self._received_at = time.monotonic()
        self._next = 0.0

    def receive(self) -> dict[str, object] | None:
        """Returns the next message that is not a heartbeat, None if there is none.

        Raises:
            LinkLostError: the connection is closed, or the other side is silent.
        """
        self.channel.flush()
        while (message := self.channel.receive()) is not None:
            self._received_at = time.monotonic()
            if message.get("type") != _HEARTBEAT["type"]:
                return message
        # Checked only after everything was read: this launcher itself may have been stopped.
        if 0 < self._timeout_seconds < time.monotonic() - self._received_at:
            raise LinkLostError(f"silent for {self._timeout_seconds:g} s")
        return None

    def beat(self) -> None:
        """Sends a heartbeat, if one is due."""
        now = time.monotonic()
        # No more than one is queued for a side that does not read.
        if now >= self._next and not self.channel.num_unsent_bytes:
            self.channel.send(_HEARTBEAT)
            self._next = now + _HEARTBEAT_SECONDS


class Hub:
    """The links of node 0 to all others, if any, and the coordinator of the job.

    Args:
        coordinator: decides what all nodes do.
        links: the links to the other nodes, by node rank.
        timeout_seconds: a node that is silent for this time counts as gone; 0: never.
        relay: takes what the others share; None: nothing is shared.
    """

    def __init__(
        self,
        coordinator: Coordinator,
        links: Mapping[int, Channel],
        timeout_seconds: float,
        relay: Relay | None = None,
    ) -> None:
        self._coordinator, self._relay = coordinator, relay
        self._links = {rank: _Heartbeat(channel, timeout_seconds) for rank, channel in links.items()}
        self._own: collections.deque[Command] = collections.deque()
        self._carry(coordinator.begin())

    def send_event(self, event: Event) -> None:
        """Reports an event of node 0."""
        self._carry(self._coordinator.handle(0, event))

    def listen(self) -> list[Command]:
        """Reads the events of all nodes, sends commands and heartbeats, and returns the commands for node 0."""
        for rank, link in list(self._links.items()):
            try:
                while (message := link.receive()) is not None:
                    event = unpacked_event(message)
                    if not isinstance(event, Shared):
                        self._carry(self._coordinator.handle(rank, event))
                    elif self._relay is not None:
                        self._relay.take(event)
                link.beat()
            except (LinkLostError, ValueError) as error:
                del self._links[rank]
                link.channel.close()
                self._carry(self._coordinator.lost(rank, str(error)))
        if self._relay is not None and self._links:
            for shared in self._relay.outgoing():
                for link in self._links.values():
                    link.channel.send(packed(shared))
        commands = list(self._own)
        self._own.clear()
        return commands

    def interests(self) -> Mapping[int, int]:
        """Returns the file descriptors and events of all links."""
        return {link.channel.fileno(): link.channel.interest for link in self._links.values()}

    def seconds_left(self) -> float | None:
        """Returns 0 if there are commands for node 0, else the time to the next heartbeat; None without links."""
        if self._own:
            return 0.0
        return _HEARTBEAT_SECONDS / 2 if self._links else None

    def close(self) -> None:
        """Closes the links, after the others have read the last command."""
        deadline = time.monotonic() + _CLOSE_SECONDS
        for link in self._links.values():
            link.channel.finish(deadline - time.monotonic())

    def _carry(self, commands: Commands) -> None:
        for rank, command in list(commands):
            if rank == 0:
                self._own.append(command)
            elif rank in self._links:
                self._links[rank].channel.send(packed(command))


class Spoke:
    """The link of another node to node 0. If it is lost, the ranks of this node are ended.

    Args:
        channel: the link.
        timeout_seconds: node 0 counts as gone if it is silent for this time; 0: never.
        grace_seconds: time from SIGTERM to SIGKILL if node 0 is gone.
        relay: has what is shared with node 0; None: nothing is shared.
    """

    def __init__(
        self, channel: Channel, timeout_seconds: float, grace_seconds: float, relay: Relay | None = None
    ) -> None:
        self._link = _Heartbeat(channel, timeout_seconds)
        self._grace_seconds, self._relay = grace_seconds, relay
        self._name = "node 0"
        self._round = -1
        self._is_idle = True
        #: Set once the link is lost.
        self._cause: Cause | None = None
        self._own: collections.deque[Command] = collections.deque()

    def send_event(self, event: Event) -> None:
        """Reports an event of this node."""
        if isinstance(event, Ended):
            self._is_idle = True
        if self._cause is None:
            self._link.channel.send(packed(event))
        elif isinstance(event, Ended):
            self._own.append(Finish(self._cause))

    def listen(self) -> list[Command]:
        """Returns the commands of node 0 that have arrived; if the link is lost, those that end this node."""
        if self._cause is None:
            try:
                while (message := self._link.receive()) is not None:
                    command = unpacked_command(message)
                    if not isinstance(command, Shared):
                        self._take(command)
                    elif self._relay is not None:
                        self._relay.take(command)
                self._link.beat()
                self._share()
            except (LinkLostError, ValueError) as error:
                self._link.channel.close()
                self._lose(str(error))
        commands = list(self._own)
        self._own.clear()
        return commands

    def _share(self) -> None:
        # Reports replace each other: none is queued for a node 0 that does not read.
        if self._relay is not None and not self._link.channel.num_unsent_bytes:
            for shared in self._relay.outgoing():
                self._link.channel.send(packed(shared))

    def _take(self, command: Command) -> None:
        self._own.append(command)
        if isinstance(command, Start):
            self._name, self._round, self._is_idle = command.nodes[0].name, command.round, False

    def _lose(self, why: str) -> None:
        self._cause = Cause(Kind.NODE, 0, self._name, detail=why)
        if self._own and isinstance(self._own[-1], Finish):
            return
        self._own.append(Finish(self._cause) if self._is_idle else Stop(self._round, True, self._grace_seconds))

    def interests(self) -> Mapping[int, int]:
        """Returns the file descriptor and the events of the link."""
        return {} if self._cause else {self._link.channel.fileno(): self._link.channel.interest}

    def seconds_left(self) -> float | None:
        """Returns 0 if there are commands, else the time to the next heartbeat; None without a link."""
        return 0.0 if self._own else None if self._cause else _HEARTBEAT_SECONDS / 2

    def close(self) -> None:
        """Closes the link."""
        self._link.channel.close()
