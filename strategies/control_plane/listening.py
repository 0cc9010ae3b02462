"""The sockets at which rank 0 waits for the others, and the ports of servers. Standard library only."""

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
        return listener(host, port)
    except OSError as error:
        raise JoinError(f"{_problem(0, address, port, error)}.") from None


def listener(host: str, port: int) -> socket.socket:
    """Returns a socket that listens at an address, or on all interfaces if `host` is no address of this machine.

    A host name often resolves to 127.0.1.1 on its own machine, where others cannot connect; and an address that is not
    this machine's may be translated by the network.

    Raises:
        OSError: the port is in use, or must not be used.
    """
    # Connections inherit SO_REUSEADDR from the socket, so that another server of this process can use the port later.
    if is_own(host):
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        return socket.create_server((host, port), family=family, backlog=1024)
    if socket.has_dualstack_ipv6():
        return socket.create_server(("", port), family=socket.AF_INET6, backlog=1024, dualstack_ipv6=True)
    return socket.create_server(("", port), backlog=1024)


def is_own(host: str) -> bool:
    """True if this is an IP address of one of this machine's interfaces."""
    try:
        family = socket.AF_INET6 if ipaddress.ip_address(host).version == 6 else socket.AF_INET
        with socket.socket(family) as probe:
            probe.bind((host, 0))
    except (OSError, ValueError):
        return False
    return True


def port_problem(rank: int, address: str) -> str | None:
    """Returns why a server of this process cannot listen at "host:port", and the fix; None if it can."""
    _, port = split(address)
    with socket.socket() as probe:
        # Like a server, ignore connections that were closed recently.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            return f"{_problem(rank, address, port, error)}, on all ranks."
    return None


def split(address: str) -> tuple[str, int]:
    """Returns host and port of "host:port", an IPv6 address without its brackets."""
    host, _, port = address.rpartition(":")
    return host.strip("[]"), int(port)


def _problem(rank: int, address: str, port: int, error: OSError) -> str:
    user = find_port_user(port)
    return (
        f"Rank {rank} cannot listen at {address}: {error}.{f' The port is used by {user}.' if user else ''} "
        "End that program, or give the processes other ports"
    )
