"""A key-value store for a job: each process posts short texts under keys, and all processes read them.

Rank 0 forwards the posts of the others; every process keeps a copy of everything. Nothing is sent between posts. A
process whose connection closes has left: the system closes the connection however the process ends.

Nothing is read from a process that has not joined.
"""

from __future__ import annotations

import contextlib
import functools
import os
import selectors
import socket
import threading
import time
import weakref
from collections.abc import Callable, Mapping
from typing import Any

from strategies.control_plane.channel import Channel, LinkLostError, encoded

#: Marks the messages of processes, from their first one.
PROTOCOL = "keras-strategies 2"
_MAX_MESSAGE_BYTES = 1 << 24
#: The most bytes that are queued for a process that does not read, as while it is stopped; more end its connection.
_MAX_UNSENT_BYTES = 1 << 26

#: The key of the exit reason, which a process posts last.
EXIT_REASON = "exit reason"


class KeyValueStore:
    """This process' copy of the key-value store, and its connections.

    Args:
        rank: this process' rank.
        world_size: the number of processes.
        links: on rank 0, the links to all others, by rank; on the others ``{0: link}``.
    """

    def __init__(self, rank: int, world_size: int, links: Mapping[int, Channel]) -> None:
        self.rank = rank
        self.world_size = world_size
        self._changed = threading.Condition()
        self._posted: dict[str, dict[int, str]] = {}
        self._left: dict[int, float] = {}
        self._listeners: list[Callable[[str, int, str], None]] = []
        self._links = dict(links)
        for link in links.values():
            link.max_message_bytes = _MAX_MESSAGE_BYTES
        self._is_closed = False
        self._wake_reader, self._wake_writer = socket.socketpair()
        for end in (self._wake_reader, self._wake_writer):
            end.setblocking(False)
        self._thread = threading.Thread(target=self._work, name="strategies-store", daemon=True)
        self._thread.start()
        os.register_at_fork(after_in_child=functools.partial(_close_in_child, weakref.ref(self)))

    def post(self, key: str, text: str) -> None:
        """Posts a text under `key` for all processes; replaces this process' earlier text. Does not wait."""
        self._note(key, self.rank, text)
        self._send({"key": key, "rank": self.rank, "text": text})

    def post_to_rank_0(self, key: str, text: str) -> None:
        """Posts a text for rank 0 alone; replaces this process' earlier text. Does not wait."""
        self._note(key, self.rank, text)
        if self.rank > 0:
            self._send({"key": key, "rank": self.rank, "text": text, "for": 0})

    def read(self, key: str) -> dict[int, str]:
        """Returns the texts that are posted under `key`, by rank."""
        with self._changed:
            return dict(self._posted.get(key, {}))

    def forget(self, key: str) -> None:
        """Removes the texts under `key` from this process' copy, when it will not read them any more."""
        with self._changed:
            self._posted.pop(key, None)

    def left(self) -> dict[int, str]:
        """Returns the ranks that have left, in the order of leaving, with exit reasons; "" for a rank without one."""
        with self._changed:
            return {rank: self._posted.get(EXIT_REASON, {}).get(rank, "") for rank in self._left}

    def listen(self, listener: Callable[[str, int, str], None]) -> None:
        """Registers `listener(key, rank, text)`: our thread calls it for each text of another process."""
        self._listeners.append(listener)

    def wait(self, until: Callable[[], bool], timeout_seconds: float | None) -> bool:
        """Waits until a condition holds, which is tested after each change; returns False if time is up before."""
        with self._changed:
            return self._changed.wait_for(until, timeout_seconds)

    def close(self, exit_reason: str) -> None:
        """Posts the exit reason of this process, and closes its connections; only the first call has an effect."""
        if not self._is_closed:
            self.post(EXIT_REASON, exit_reason)
            self._is_closed = True
            self._wake()
        self._thread.join(2.0)

    # ---- the thread

    def _work(self) -> None:
        with selectors.DefaultSelector() as selector:
            selector.register(self._wake_reader, selectors.EVENT_READ)
            for other, link in self._links.items():
                selector.register(link, selectors.EVENT_READ, other)
            # The first messages may have come with the last one of the rendezvous.
            ready = list(self._links)
            while True:
                for other in ready:
                    if not self._serve(other):
                        link = self._links.pop(other)
                        selector.unregister(link)
                        link.close()
                        self._note_left(other)
                for other, link in self._links.items():
                    wanted = selectors.EVENT_READ | (selectors.EVENT_WRITE if link.num_unsent_bytes else 0)
                    selector.modify(link, wanted, other)
                if self._is_closed and not any(link.num_unsent_bytes for link in self._links.values()):
                    break
                keys = [key for key, _ in selector.select(1.0 if self._is_closed else None)]
                with contextlib.suppress(BlockingIOError):
                    self._wake_reader.recv(1 << 16)
                ready = [key.data for key in keys if key.data is not None]
        for link in self._links.values():
            link.close()
        for end in (self._wake_reader, self._wake_writer):
            end.close()

    def _serve(self, other: int) -> bool:
        """Receives and sends what is possible now; returns False if the process has left."""
        link = self._links[other]
        try:
            # Receive first: sending on a closed connection fails, and messages that came before would be lost.
            while (message := link.receive()) is not None:
                self._take(other, message)
                if not link.has_message:
                    # No more from this one now: what it sends would fill the queues of the others, which wait.
                    break
        except (LinkLostError, ValueError, KeyError, TypeError):
            return False
        link.flush()
        return link.num_unsent_bytes <= _MAX_UNSENT_BYTES

    def _take(self, other: int, message: dict[str, Any]) -> None:
        rank = int(message["rank"]) if self.rank > 0 else other
        if "left" in message:
            self._note_left(rank)
            return
        key, text = str(message["key"]), str(message["text"])
        self._note(key, rank, text)
        if self.rank == 0 and "for" not in message:
            self._send({"key": key, "rank": rank, "text": text}, but=other)
        for listener in self._listeners:
            listener(key, rank, text)

    def _note(self, key: str, rank: int, text: str) -> None:
        with self._changed:
            self._posted.setdefault(key, {})[rank] = text
            self._changed.notify_all()

    def _note_left(self, rank: int) -> None:
        with self._changed:
            self._left.setdefault(rank, time.monotonic())
            self._changed.notify_all()
        if self.rank == 0:
            self._send({"left": True, "rank": rank})

    def _send(self, message: dict[str, Any], but: int | None = None) -> None:
        line = encoded(PROTOCOL, message)
        for other, link in list(self._links.items()):
            if other != but:
                link.queue(line)
        self._wake()

    def _wake(self) -> None:
        # If the socket is full, the thread is awake anyway.
        with contextlib.suppress(OSError):
            self._wake_writer.send(b"\0")


def _close_in_child(store: weakref.ref[KeyValueStore]) -> None:
    """Closes the connections in a forked child: otherwise they would stay open after the end of this process."""
    inherited = store()
    if inherited is None:
        return
    inherited._is_closed = True
    for link in inherited._links.values():
        link.close()
    inherited._links.clear()
    inherited._wake_reader.close()
    inherited._wake_writer.close()
