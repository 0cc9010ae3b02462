"""A check that a process can listen at its port. Standard library only."""

from __future__ import annotations

import socket

from strategies.topology.port_users import find_port_user


def port_problem(rank: int, address: str) -> str | None:
    """Returns why a server of this process cannot listen at "host:port", and the fix; None if it can."""
    port = int(address.rpartition(":")[2])
    with socket.socket() as probe:
        # Like a server, ignore connections that were closed recently.
        probe.setsockopt(socket.SOL_SOCKET, socket.SO_REUSEADDR, 1)
        try:
            probe.bind(("", port))
        except OSError as error:
            user = find_port_user(port)
            return (
                f"Rank {rank} cannot listen at {address}: {error}.{f' The port is used by {user}.' if user else ''} "
                "End that program, or give the processes other ports, on all ranks."
            )
    return None
