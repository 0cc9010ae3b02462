"""The rendezvous address of the nodes of a job: listening at it, and connecting to it. Standard library only."""

import errno
import ipaddress
import socket
from dataclasses import dataclass

from strategies.launching.messages import Node
from strategies.launching.ports import LaunchError
from strategies.launching.wire import Channel, LinkLostError
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

    @property
    def is_own(self) -> bool:
        """True if this is an IP address of one of this machine's interfaces."""
        try:
            family = socket.AF_INET6 if ipaddress.ip_address(self.host).version == 6 else socket.AF_INET
            with socket.socket(family) as probe:
                probe.bind((self.host, 0))
        except (OSError, ValueError):
            return False
        return True

    def listen(self, own: Node) -> socket.socket:
        """Returns the socket at which node 0 listens.

        Raises:
            LaunchError: the port is in use; the message names the other node 0 or program that uses it.
        """
        try:
            return self._server()
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

    def _server(self) -> socket.socket:
        if self.is_own:
            family = socket.AF_INET6 if ":" in self.host else socket.AF_INET
            return socket.create_server((self.host, self.port), family=family)
        # A host name often resolves to 127.0.1.1 on its own machine, where other nodes cannot connect; an address that
        # is not this machine's is translated by the network. In both cases listen on all interfaces.
        if socket.has_dualstack_ipv6():
            return socket.create_server(("", self.port), family=socket.AF_INET6, dualstack_ipv6=True)
        return socket.create_server(("", self.port))

    def _ask_another_node_0(self, own: Node) -> None:
        """Raises the LaunchError of the other node 0, if it is a launcher that listens at our port."""
        for host in dict.fromkeys((self.host, "127.0.0.1")):
            try:
                channel = Channel(socket.create_connection((host, self.port), timeout=_CONNECT_SECONDS))
            except OSError:
                continue
            try:
                channel.send({"node": own.to_json()})
                answer = channel.wait(_ANSWER_SECONDS)
            except LinkLostError:
                continue
            finally:
                channel.close()
            if answer is not None and "error" in answer:
                raise LaunchError(str(answer["error"]))


class Probe:
    """Detects a launcher on another host that also listens as node 0 at the same address.

    A node 0 listens even if --master-addr is not an address of its own interfaces, since the network may translate
    addresses. It also connects to that address: it reaches either itself, or the other node 0, and then both end.
    """

    _RETRY_SECONDS = 1.0

    def __init__(self, endpoint: Endpoint, own: Node) -> None:
        self._own = own
        self._channel: Channel | None = None
        self._next = 0.0
        self._targets = []
        if not endpoint.is_own:
            try:
                found = socket.getaddrinfo(endpoint.host, endpoint.port, type=socket.SOCK_STREAM)
            except OSError:
                found = []
            self._targets = [(family, address) for family, _, _, _, address in found]

    @property
    def is_active(self) -> bool:
        """True until `close`, if there is an address to connect to."""
        return bool(self._targets)

    def step(self, now: float) -> None:
        """Connects, or reads an answer; call it a few times a second.

        Raises:
            LaunchError: another node 0 has answered; it raises the same error.
        """
        if self._channel is None:
            if now >= self._next:
                self._connect()
            return
        try:
            self._channel.flush()
            answer = self._channel.receive()
        except LinkLostError:
            self._channel.close()
            self._channel, self._next = None, now + self._RETRY_SECONDS
        else:
            if answer is not None and "error" in answer:
                raise LaunchError(str(answer["error"]))

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
        self._channel = Channel(attempt)
        self._channel.send({"node": self._own.to_json()})
