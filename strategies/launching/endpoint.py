"""The rendezvous address of the nodes of a job: listening at it, and connecting to it. Standard library only."""

import contextlib
import errno
import math
import socket
import time
from dataclasses import dataclass

from strategies.control_plane.channel import Channel, LinkLostError, connect
from strategies.control_plane.listening import is_own, listener
from strategies.control_plane.rendezvous import ask
from strategies.launching.messages import PROTOCOL, Node
from strategies.launching.ports import LaunchError
from strategies.topology.port_users import find_port_user

# The time limit of the wait for an answer from the program that uses our port.
_ANSWER_SECONDS = 2.0
_CONNECT_SECONDS = 2.0


@dataclass(frozen=True)
class Endpoint:
    """The address of node 0, and the limits of waiting there.

    Args:
        host, port: --master-addr and --master-port.
        timeout_seconds: limit of the wait for the other nodes.
        notice_seconds: time between two lines about the wait.
    """

    host: str
    port: int
    timeout_seconds: float
    notice_seconds: float = 10.0

    def __str__(self) -> str:
        return f"{self.host}:{self.port}"

    def listen(self, own: Node) -> socket.socket:
        """Returns the socket at which node 0 listens.

        Raises:
            LaunchError: the port is in use; the message names the other node 0 or program that uses it.
        """
        try:
            return listener(self.host, self.port)
        except OSError as error:
            if error.errno == errno.EADDRINUSE:
                self._ask_another_node_0(own)
                user = find_port_user(self.port)
                by = f"by {user}" if user else "by a program that this user cannot see"
                raise LaunchError(
                    f"Node 0 cannot listen at {self}: the port is in use {by}. Choose another, the same on all nodes: "
                    f"--master-port."
                ) from None
            raise LaunchError(
                f"Node 0 cannot listen at {self}: {error}. Choose another address or port, the same on all nodes: "
                f"--master-addr, --master-port."
            ) from None

    def _ask_another_node_0(self, own: Node) -> None:
        """Raises the LaunchError of the other node 0, if it is a launcher that listens at our port."""
        for host in dict.fromkeys((self.host, "127.0.0.1")):
            with contextlib.suppress(OSError, LinkLostError):
                channel = connect(host, self.port, PROTOCOL, _CONNECT_SECONDS)
                ask(channel, {"node": own.to_json()}, _ANSWER_SECONDS, LaunchError)
                channel.close()


class Probe:
    """Detects a launcher on another host that also listens as node 0 at the same address.

    A node 0 listens even if --master-addr is not an address of its own interfaces, since the network may translate
    addresses. It also connects to that address: it reaches either itself, or the other node 0, and then both end.
    """

    _RETRY_SECONDS = 1.0
    _LOOK_SECONDS = 0.1

    def __init__(self, endpoint: Endpoint, own: Node) -> None:
        self._own = own
        self._channel: Channel | None = None
        self._next = 0.0
        #: The addresses to connect to; empty after `close`.
        self._targets = []
        if not is_own(endpoint.host):
            with contextlib.suppress(OSError):
                found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
                self._targets = [(family, address) for family, _, _, _, address in found]

    def step(self) -> float:
        """Connects, or reads an answer; returns the seconds until the next step.

        Raises:
            LaunchError: another node 0 has answered; it raises the same error.
        """
        if not self._targets:
            return math.inf
        if self._channel is None:
            if time.monotonic() >= self._next:
                self._connect()
            return self._LOOK_SECONDS
        try:
            self._channel.flush()
            answer = self._channel.receive()
        except LinkLostError:
            self._channel.close()
            self._channel, self._next = None, time.monotonic() + self._RETRY_SECONDS
        else:
            if answer is not None and "error" in answer:
                raise LaunchError(str(answer["error"]))
        return self._LOOK_SECONDS

    def close(self) -> None:
        """Ends the attempts, when this node has reached itself, or the wait is over."""
        self._targets = []
        if self._channel is not None:
            self._channel.close()
            self._channel = None

    def _connect(self) -> None:
        family, address = self._targets[0]
        # With several addresses, the next attempt uses the next one.
        self._targets = [*self._targets[1:], self._targets[0]]
        attempt = socket.socket(family, socket.SOCK_STREAM)
        attempt.setblocking(False)
        attempt.connect_ex(address)
        self._channel = Channel(attempt, PROTOCOL)
        self._channel.send({"node": self._own.to_json()})
