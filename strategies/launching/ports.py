"""Free ports for the processes of a node. Standard library only."""

import random
import socket
from pathlib import Path


class LaunchError(Exception):
    """The job cannot be started; the message has the reason and the fix."""


class HeldPorts:
    """Free TCP ports, reserved together and held until `close`; call it right before they are used."""

    def __init__(self, num_ports: int) -> None:
        self._sockets: list[socket.socket] = []
        try:
            for _ in range(num_ports):
                self._sockets.append(_bind_free_port())
        except BaseException:
            self.close()
            raise
        self.ports: tuple[int, ...] = tuple(held.getsockname()[1] for held in self._sockets)

    def close(self) -> None:
        """Releases the ports."""
        for held in self._sockets:
            held.close()


def _bind_free_port() -> socket.socket:
    # Not one of the ephemeral ports: an outgoing connection could take it before TensorFlow listens on it. On all
    # interfaces, because TensorFlow listens on all.
    try:
        first_outgoing = int(Path("/proc/sys/net/ipv4/ip_local_port_range").read_text().split()[0])
    except (OSError, ValueError):
        first_outgoing = 0
    quiet = range(20000, min(first_outgoing, 29000))
    for port in [*random.SystemRandom().sample(quiet, min(100, len(quiet))), 0]:
        held = socket.socket(socket.AF_INET, socket.SOCK_STREAM)
        try:
            held.bind(("", port))
        except OSError:
            held.close()
        else:
            return held
    raise LaunchError("This machine has no free TCP port left.")
