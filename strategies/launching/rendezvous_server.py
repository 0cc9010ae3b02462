"""Rendezvous on node 0, which listens until all nodes have announced themselves. Standard library only."""

import contextlib
import selectors
import socket
import time
from collections.abc import Callable, Mapping
from typing import Any

from strategies.launching.endpoint import Endpoint, Probe
from strategies.launching.messages import Node
from strategies.launching.ports import LaunchError
from strategies.launching.wire import Channel, LinkLostError

_PROBE_SECONDS = 0.1
# The other nodes have this time to read the error before their connections are closed.
_CLOSE_SECONDS = 2.0


class RendezvousServer:
    """The nodes that have announced themselves, and their connections.

    Args:
        own: node 0.
        listener: the socket on which it listens.
        endpoint: the address of that socket, and the limits of waiting.
        log: prints a line about the wait.
    """

    def __init__(self, own: Node, listener: socket.socket, endpoint: Endpoint, log: Callable[[str], None]) -> None:
        self._own, self._listener, self._endpoint, self._log = own, listener, endpoint, log
        self._joined = {0: own}
        #: All connections, each with its node rank, or None for one that has not announced itself.
        self._rank_by_channel: dict[Channel, int | None] = {}
        self._selector = selectors.DefaultSelector()

    def wait(self, check: Callable[[Mapping[int, Node]], None]) -> tuple[dict[int, Node], dict[int, Channel]]:
        """Waits for all nodes; returns them, and the links to the others, by node rank.

        Args:
            check: raises LaunchError for nodes that do not fit together.

        Raises:
            LaunchError: on this node and on all others that have arrived.
        """
        probe = Probe(self._endpoint, self._own)
        try:
            self._accept_all(probe)
            check(self._joined)
        except BaseException as error:
            if isinstance(error, LaunchError):
                self._broadcast({"error": str(error)})
            deadline = time.monotonic() + (_CLOSE_SECONDS if isinstance(error, LaunchError) else 0.0)
            for channel in self._rank_by_channel:
                channel.finish(deadline - time.monotonic())
            raise
        finally:
            probe.close()
            self._selector.close()
        links = {}
        for channel, rank in self._rank_by_channel.items():
            if rank is None:
                channel.close()
            else:
                links[rank] = channel
                channel.send({"complete": True})
        return self._joined, links

    def _accept_all(self, probe: Probe) -> None:
        self._listener.setblocking(False)
        self._selector.register(self._listener, selectors.EVENT_READ)
        start = now = time.monotonic()
        notice = start + self._endpoint.notice_seconds
        while len(self._joined) < self._own.num_nodes:
            if now >= start + self._endpoint.timeout_seconds:
                raise LaunchError(
                    f"Of {self._own.num_nodes} nodes, these did not connect to {self._endpoint} within "
                    f"{self._endpoint.timeout_seconds:g} s: {self._missing()}. Start the launcher there, too, with its "
                    f"--node-rank, and check that it can connect to node 0."
                )
            if now >= notice:
                notice += self._endpoint.notice_seconds
                waited = (
                    f"{self._own.name} has waited {now - start:.0f} s of {self._endpoint.timeout_seconds:g} s at "
                    f"{self._endpoint} for {self._missing()}."
                )
                self._log(waited)
                self._broadcast({"waiting": waited})
            if probe.is_active:
                probe.step(now)
            self._look(min(start + self._endpoint.timeout_seconds, notice) - now, probe)
            now = time.monotonic()

    def _missing(self) -> str:
        return "node " + ", ".join(str(rank) for rank in range(self._own.num_nodes) if rank not in self._joined)

    def _look(self, timeout_seconds: float, probe: Probe) -> None:
        timeout_seconds = min(timeout_seconds, _PROBE_SECONDS) if probe.is_active else timeout_seconds
        ready = [key.fileobj for key, _ in self._selector.select(max(0.0, timeout_seconds))]
        # Known connections before new ones: a node that has left frees its rank for a restarted launcher.
        for channel in sorted(ready, key=lambda each: each not in self._rank_by_channel):
            if isinstance(channel, Channel):
                self._receive(channel, probe)
            else:
                self._accept()

    def _accept(self) -> None:
        # The client may have disconnected already.
        with contextlib.suppress(OSError):
            channel = Channel(self._listener.accept()[0])
            self._rank_by_channel[channel] = None
            self._selector.register(channel, selectors.EVENT_READ)

    def _receive(self, channel: Channel, probe: Probe) -> None:
        try:
            message = channel.receive()
            if message is not None and self._rank_by_channel[channel] is None:
                self._register(channel, Node.from_json(message.get("node")), probe)
        except (LinkLostError, ValueError):
            # A port scanner, a browser, or a node whose launcher was stopped: its rank is free again.
            rank = self._rank_by_channel.pop(channel)
            if rank is not None:
                del self._joined[rank]
            self._selector.unregister(channel)
            channel.close()

    def _register(self, channel: Channel, node: Node, probe: Probe) -> None:
        if node.token == self._own.token:
            # Our own probe has reached us. Closing its end makes `_receive` drop this one.
            probe.close()
            return
        if node.num_nodes != self._own.num_nodes:
            raise LaunchError(
                f"Node {node.node_rank} at {node.host} was started with --nnodes {node.num_nodes}, node 0 with "
                f"--nnodes {self._own.num_nodes}. It must be the same on all nodes."
            )
        if node.node_rank in self._joined:
            other = self._joined[node.node_rank]
            raise LaunchError(
                f"Two nodes, at {_where(other)} and at {_where(node)}, were started with --node-rank "
                f"{node.node_rank}. It must be different on each, 0 to {self._own.num_nodes - 1}."
            )
        self._joined[node.node_rank] = node
        self._rank_by_channel[channel] = node.node_rank

    def _broadcast(self, message: dict[str, Any]) -> None:
        for channel, rank in self._rank_by_channel.items():
            # An error also goes to another node 0, which has no rank in this job.
            if rank is not None or "error" in message:
                channel.send(message)


def _where(node: Node) -> str:
    return f"{node.hostname} (address {node.host}, pid {node.pid})"
