"""Rendezvous on the nodes after node 0, which connect to it. Standard library only."""

import socket
import time
from collections.abc import Callable
from dataclasses import replace

from strategies.launching.endpoint import Endpoint
from strategies.launching.messages import Node
from strategies.launching.ports import LaunchError
from strategies.launching.wire import Channel, LinkLostError

_RETRY_SECONDS = 0.2
# Extra time for an answer that has already been sent.
_SLACK_SECONDS = 10.0


def join(own: Node, endpoint: Endpoint, log: Callable[[str], None]) -> Channel:
    """Connects to node 0, and returns the link when all nodes have arrived there.

    Args:
        own: this node; if it has no host, it announces the address of its connection.
        endpoint: the address of node 0.
        log: prints a line about the wait.

    Raises:
        LaunchError: node 0 cannot be reached, or ends the rendezvous.
    """
    channel = _connect(own, endpoint, log)
    try:
        channel.send({"node": replace(own, host=own.host or channel.own_address).to_json()})
        # Node 0 may have started after us: then its timeout ends later than ours.
        deadline = time.monotonic() + endpoint.timeout_seconds + _SLACK_SECONDS
        while (message := channel.wait(deadline - time.monotonic())) is not None:
            if "error" in message:
                raise LaunchError(str(message["error"]))
            if "complete" in message:
                return channel
            if "waiting" in message:
                log(str(message["waiting"]))
        raise LinkLostError("it is silent")
    except LinkLostError as error:
        channel.close()
        raise LaunchError(
            f"Node {own.node_rank} got no answer from node 0 at {endpoint} ({error}). Was its launcher stopped, or "
            "does another program listen there, or another version of strategies.launch?"
        ) from None
    except BaseException:
        channel.close()
        raise


def _connect(own: Node, endpoint: Endpoint, log: Callable[[str], None]) -> Channel:
    start = time.monotonic()
    notice = start + endpoint.notice_seconds
    while True:
        # Limits the attempt, so that the next notice is on time even if nobody answers.
        until = min(notice, start + endpoint.timeout_seconds)
        try:
            timeout = max(0.1, until - time.monotonic())
            connection = socket.create_connection((endpoint.host, endpoint.port), timeout=timeout)
            # Over loopback, a connection to a port without a listener can connect to itself.
            if connection.getsockname() != connection.getpeername():
                return Channel(connection)
            connection.close()
            reason = "connection refused"
        except OSError as error:
            reason = error.strerror or str(error)
        now = time.monotonic()
        if now >= start + endpoint.timeout_seconds:
            raise LaunchError(
                f"Node {own.node_rank} did not reach node 0 at {endpoint} within {endpoint.timeout_seconds:g} s: "
                f"{reason}. Start node 0 as well, and check --master-addr and --master-port."
            )
        if now >= notice:
            notice += endpoint.notice_seconds
            log(
                f"{own.name} has waited {now - start:.0f} s of {endpoint.timeout_seconds:g} s for node 0 at "
                f"{endpoint}: {reason}."
            )
        time.sleep(_RETRY_SECONDS)
