"""Free ports for the processes of a node. Standard library only."""

import random
import socket
from pathlib import Path


class LaunchError(Exception):
    """The job cannot be started; the message has the reason and the fix."""


class ReservedPorts:
    """Free TCP ports, reserved together and held until `close`; call it right before they are used."""

    def __init__(self, num_ports: int) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(num_ports):
                self._sockets.append(_bind_free_port())
        except BaseException:
            self.close()
            raise
        self.ports: tuple[int, ...] = tuple(bound.getsockname()[1] for bound in self._sockets)

    def close(self) -> None:
        """Releases the ports."""
        for bound in self._sockets:
            bound.close()


def _bind_free_port() -> socket.socket:
    # Not one of the ephemeral ports: an outgoing connection could take it before TensorFlow listens on it. On all
    # interfaces, because TensorFlow listens on all.
    try:
        first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first_outgoing = 0
    quiet = range(20000, min(first_outgoing, 29000))
    for port in [*random.SystemRandom().sample(quiet, min(100, len(quiet))), 0]:
        bound = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            bound.bind(("", port))
        except OSError:
            bound.close()
        else:
            return bound
    raise LaunchError("This machine has no free TCP port left.")
