"""Checks that other hosts can reach this one by its name or address. Standard library only."""

from __future__ import annotations

import ipaddress
import socket


def loopback_problem(rank: int, address: str | None = None) -> str | None:
    """Returns a problem and its fix if this host's name has no address, or one that other hosts cannot reach.

    Debian's installer writes such a line to /etc/hosts: ``127.0.1.1 name``.

    Args:
        rank: this process' rank.
        address: the address at which others reach this host, for the fix; None if it is not known.
    """
    name = socket.gethostname()
    try:
        resolved = socket.gethostbyname(name)
    except OSError as error:
        return (
            f"Rank {rank}: the name of its host, {name!r}, cannot be resolved ({error}). Add a line to /etc/hosts "
            f"there: {address or '<its address>'} {name}"
        )
    if not ipaddress.ip_address(resolved).is_loopback:
        return None
    return (
        f"Rank {rank}: the name of its host, {name!r}, stands for {resolved} there, where other hosts cannot connect. "
        f"Change that line of /etc/hosts there to: {address or '<its address>'} {name}"
    )


def own_address(host: str, port: int) -> str | None:
    """Returns the address from which this host would reach another; None without a route. Sends nothing."""
    try:
        family, kind, protocol, _, target = socket.getaddrinfo(host, port, type=socket.SOCK_DGRAM)[0]
        with socket.socket(family, kind, protocol) as probe:
            probe.connect(target)
            return str(probe.getsockname()[0])
    except OSError:
        return None
