"""The rendezvous of the ranks of a job: rank 0 listens until all others have connected and announced themselves.

Processes and launchers meet in this way. Announcements, errors and the lines about waiting are theirs: see `joining`,
and `strategies.launching.nodes`. Standard library only.
"""

from __future__ import annotations

import contextlib
import math
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any, Generic, Self, TypeVar

from strategies.control_plane.channel import Channel, LinkLostError

RETRY_SECONDS = 0.1
# The others have this time to read an error before their connections are closed.
_CLOSE_SECONDS = 2.0

Peer = TypeVar("Peer")


class Countdown:
    """A wait with a limit, in which a line is logged now and then.

    Args:
        timeout_seconds: the limit; None for none.
        notice_seconds: the time between two lines.
    """

    def __init__(self, timeout_seconds: float | None, notice_seconds: float) -> None:
        self._began = time.monotonic()
        self._timeout_seconds = math.inf if timeout_seconds is None else timeout_seconds
        self._notice_seconds = self._next_notice = notice_seconds

    @property
    def waited(self) -> float:
        """The seconds since the start."""
        return time.monotonic() - self._began

    @property
    def left(self) -> float:
        """The seconds to the limit; 0 or less if it is over."""
        return self._timeout_seconds - self.waited

    @property
    def until_next(self) -> float:
        """The seconds to the next line or the limit, at least 0."""
        return max(0.0, min(self.left, self._next_notice - self.waited))

    def is_notice_due(self) -> bool:
        """True if it is time for a line; the next one is due some time later."""
        if self.waited < self._next_notice:
            return False
        self._next_notice = self.waited + self._notice_seconds
        return True


def ask(
    channel: Channel,
    announcement: Mapping[str, Any],
    timeout_seconds: float,
    refusal: type[Exception],
    log: Callable[[str], None] = lambda line: None,
) -> dict[str, Any]:
    """Announces this rank to rank 0, and returns the answer, which comes once all have arrived there.

    Args:
        channel: the link to rank 0; it is closed if there is an error.
        announcement: what `welcome` of `RendezvousServer` takes.
        timeout_seconds: the limit of the wait for the answer.
        refusal: the class of the error that is raised if rank 0 ends the rendezvous.
        log: prints a line of rank 0 about the wait.

    Raises:
        LinkLostError: rank 0 is silent or closes the connection, or another program has answered.
    """
    try:
        channel.send(announcement)
        deadline = time.monotonic() + timeout_seconds
        while (message := channel.wait(deadline - time.monotonic())) is not None:
            if "error" in message:
                raise refusal(str(message["error"]))
            if "waiting" not in message:
                return message
            log(str(message["waiting"]))
        raise LinkLostError("it is silent")
    except BaseException:
        channel.close()
        raise


class RendezvousServer(Generic[Peer]):
    """The ranks that have announced themselves at rank 0, and their connections; a context manager.

    At its end it closes the listener and all connections of others. After an error it closes all connections; all get
    the error before that, if it is a `refusal`.

    Args:
        listener: the socket to which the others connect.
        protocol: marks their messages.
        own: rank 0 itself.
        size: the number of ranks.
        welcome: takes an announcement; returns the rank and its peer, or None if it is no announcement. May
            raise a `refusal`.
        refusal: the class of errors that end the rendezvous on all ranks.
    """

    def __init__(
        self,
        listener: socket.socket,
        protocol: str,
        own: Peer,
        size: int,
        welcome: Callable[[dict[str, Any], Mapping[int, Peer]], tuple[int, Peer] | None],
        refusal: type[Exception],
    ) -> None:
        #: The peers that `welcome` returned, by rank.
        self.joined: dict[int, Peer] = {0: own}
        self._listener, self._protocol, self._size = listener, protocol, size
        self._welcome, self._refusal = welcome, refusal
        #: All connections, each with its rank, or None for one that has not announced itself.
        self._rank_by_channel: dict[Channel, int | None] = {}
        self._selector = selectors.DefaultSelector()
        listener.setblocking(False)
        self._selector.register(listener, selectors.EVENT_READ)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: object, error: BaseException | None, traceback: object) -> None:
        self._selector.close()
        self._listener.close()
        is_refused = isinstance(error, self._refusal)
        for channel in self._rank_by_channel:
            # Also to those that have not announced themselves: one of them may be the reason.
            if is_refused:
                channel.send({"error": str(error)})
        deadline = time.monotonic() + (_CLOSE_SECONDS if is_refused else 0.0)
        for channel, rank in self._rank_by_channel.items():
            if error is not None or rank is None:
                channel.finish(deadline - time.monotonic())

    @property
    def missing(self) -> list[int]:
        """The ranks that have not announced themselves."""
        return [rank for rank in range(self._size) if rank not in self.joined]

    @property
    def links(self) -> dict[int, Channel]:
        """The connections of the ranks that have announced themselves, by rank."""
        return {rank: channel for channel, rank in self._rank_by_channel.items() if rank is not None}

    def broadcast(self, message: Mapping[str, Any]) -> None:
        """Sends a message to all ranks that have announced themselves."""
        for channel in self.links.values():
            channel.send(message)

    def look(self, timeout_seconds: float) -> None:
        """Waits for an event on one of the connections, and handles all events."""
        ready = [key.fileobj for key, _ in self._selector.select(timeout_seconds)]
        # Known connections before new ones: a rank that has left can be taken again, as by a restarted launcher.
        for channel in sorted(ready, key=lambda each: each is self._listener):
            if isinstance(channel, Channel):
                self._receive(channel)
            else:
                self._accept()

    def _accept(self) -> None:
        # The client may have disconnected already.
        with contextlib.suppress(OSError):
            channel = Channel(self._listener.accept()[0], self._protocol)
            self._rank_by_channel[channel] = None
            self._selector.register(channel, selectors.EVENT_READ)

    def _receive(self, channel: Channel) -> None:
        rank = self._rank_by_channel[channel]
        try:
            message = channel.receive()
        except LinkLostError:
            # A port scanner, a browser, or a rank that has left: it is free again.
            self._drop(channel)
            return
        if message is None or rank is not None:
            return
        found = self._welcome(message, self.joined)
        if found is None:
            self._drop(channel)
        else:
            rank, peer = found
            self._rank_by_channel[channel], self.joined[rank] = rank, peer

    def _drop(self, channel: Channel) -> None:
        rank = self._rank_by_channel.pop(channel)
        if rank is not None:
            del self.joined[rank]
        self._selector.unregister(channel)
        channel.close()
