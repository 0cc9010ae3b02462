"""The socket at which rank 0 waits for the others."""

from __future__ import annotations

import ipaddress
import socket

from strategies.control_plane.rank_info import JoinError
from strategies.topology.port_users import find_port_user


def listen(address: str) -> socket.socket:
    """Returns a socket that listens at "host:port", or on all interfaces if the host is no address of this machine.

    Raises:
        JoinError: the port is in use; the message names the program that uses it, if that can be known.
    """
    host, port = split(address)
    try:
        if _is_own(host):
            family = socket.AF_INET6 if ":" in host else socket.AF_INET
            return _reusable(socket.socket(family), (host, port))
        return _reusable(socket.socket(socket.AF_INET), ("", port))
    except OSError as error:
        user = find_port_user(port)
        raise JoinError(
            f"Rank 0 cannot listen at {address}: {error}."
            f"{f' The port is used by {user}.' if user else ''} End that program, or give the processes other ports."
        ) from None


def _reusable(made: socket.socket, where: tuple[str, int]) -> socket.socket:
    # Connections inherit the option, so that another server of this process can listen at this port later.
    made.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
    try:
        made.bind(where)
        made.listen(1024)
    except OSError:
        made.close()
        raise
    return made


def _is_own(host: str) -> bool:
    """True if this is an IP address of one of this machine's interfaces."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


def split(address: str) -> tuple[str, int]:
    """Returns host and port of "host:port", an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)
