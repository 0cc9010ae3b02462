"""The rendezvous of the nodes of a job: node 0 listens, the others connect to it. Standard library only."""

import contextlib
import os
import secrets
import socket
import sys
import time
from collections.abc import Callable, Mapping
from dataclasses import dataclass, replace
from typing import Any

from strategies.control_plane.channel import Channel, LinkLostError, connect
from strategies.control_plane.rendezvous import RETRY_SECONDS, Countdown, RendezvousServer, ask
from strategies.launching.endpoint import Endpoint, Probe
from strategies.launching.messages import PROTOCOL, Node
from strategies.launching.ports import LaunchError

# Extra time for an answer that has already been sent.
_SLACK_SECONDS = 10.0


@dataclass(frozen=True)
class Rendezvous:
    """The result of a rendezvous, by node rank: the nodes of the job (on node 0 only), and this node's links."""

    nodes: Mapping[int, Node]
    links: Mapping[int, Channel]


def announcement(node_rank: int, num_nodes: int, ports: tuple[int, ...], host: str) -> Node:
    """Returns the announcement of this node; see `Node`."""
    return Node(node_rank, num_nodes, host, ports, socket.gethostname(), os.getpid(), secrets.token_hex(8))


def log_to_stderr(text: str) -> None:
    """Prints a line of the launcher on stderr."""
    print(f"strategies.launch: {text}", file=sys.stderr, flush=True)


def rendezvous(
    own: Node,
    endpoint: Endpoint,
    check: Callable[[Mapping[int, Node]], None] = lambda nodes: None,
    log: Callable[[str], None] = log_to_stderr,
) -> Rendezvous:
    """Waits for all nodes of the job, and returns them and this node's links.

    Args:
        own: this node. A node after node 0 may have no host: it announces the address of its connection to node 0.
        endpoint: the address at which node 0 listens.
        check: on node 0, raises LaunchError for nodes that do not fit together.
        log: prints a line about the wait.

    Raises:
        LaunchError: on every node that has arrived, if a node is missing, two have the same rank, or they disagree.
    """
    if own.node_rank > 0:
        return Rendezvous({}, {0: _join(own, endpoint, log)})
    return _host(own, endpoint, check, log)


def _host(
    own: Node, endpoint: Endpoint, check: Callable[[Mapping[int, Node]], None], log: Callable[[str], None]
) -> Rendezvous:
    """Listens as node 0 until all nodes have announced themselves."""
    listener, probe = endpoint.listen(own), Probe(endpoint, own)

    def welcome(message: dict[str, Any], joined: Mapping[int, Node]) -> tuple[int, Node] | None:
        try:
            node = Node.from_json(message.get("node"))
        except ValueError:
            return None
        if node.token == own.token:
            # Our own probe has reached us.
            probe.close()
            return None
        _check_fits(node, joined)
        return node.node_rank, node

    server = RendezvousServer(listener, PROTOCOL, own, own.num_nodes, welcome, LaunchError)
    countdown = Countdown(endpoint.timeout_seconds, endpoint.notice_seconds)
    with contextlib.closing(probe), server:
        while missing := server.missing:
            names = f"node {', '.join(map(str, missing))}"
            if countdown.left <= 0:
                raise LaunchError(
                    f"Of {own.num_nodes} nodes, these did not connect to {endpoint} within "
                    f"{endpoint.timeout_seconds:g} s: {names}. Start the launcher there, too, with its "
                    f"--node-rank, and check that it can connect to node 0."
                )
            if countdown.is_notice_due():
                waited = (
                    f"{own.name} has waited {countdown.waited:.0f} s of {endpoint.timeout_seconds:g} s at {endpoint} "
                    f"for {names}."
                )
                log(waited)
                server.broadcast({"waiting": waited})
            server.look(min(countdown.until_next, probe.step()))
        check(server.joined)
    server.broadcast({"complete": True})
    return Rendezvous(server.joined, server.links)


def _check_fits(node: Node, joined: Mapping[int, Node]) -> None:
    """Raises LaunchError if a node does not fit those that have arrived."""
    if node.num_nodes != joined[0].num_nodes:
        raise LaunchError(
            f"Node {node.node_rank} at {node.host} was started with --nnodes {node.num_nodes}, node 0 with "
            f"--nnodes {joined[0].num_nodes}. It must be the same on all nodes."
        )
    if node.node_rank in joined:
        raise LaunchError(
            f"Two nodes, at {_where(joined[node.node_rank])} and at {_where(node)}, were started with --node-rank "
            f"{node.node_rank}. It must be different on each, 0 to {node.num_nodes - 1}."
        )


def _where(node: Node) -> str:
    return f"{node.hostname} (address {node.host}, pid {node.pid})"


def _join(own: Node, endpoint: Endpoint, log: Callable[[str], None]) -> Channel:
    """Connects to node 0, and returns the link when all nodes have arrived there."""
    channel = _connect(own, endpoint, log)
    node = replace(own, host=own.host or channel.own_address)
    try:
        # Node 0 may have started after us: then its timeout ends later than ours.
        ask(channel, {"node": node.to_json()}, endpoint.timeout_seconds + _SLACK_SECONDS, LaunchError, log)
    except LinkLostError as error:
        raise LaunchError(
            f"Node {own.node_rank} got no answer from node 0 at {endpoint} ({error}). Was its launcher stopped, or "
            "does another program listen there, or another version of strategies.launch?"
        ) from None
    return channel


def _connect(own: Node, endpoint: Endpoint, log: Callable[[str], None]) -> Channel:
    countdown = Countdown(endpoint.timeout_seconds, endpoint.notice_seconds)
    while True:
        try:
            # The time is that to the next line, so that it is not late if nobody answers.
            return connect(endpoint.host, endpoint.port, PROTOCOL, countdown.until_next)
        except OSError as error:
            reason = error.strerror or str(error)
        if countdown.left <= 0:
            raise LaunchError(
                f"Node {own.node_rank} did not reach node 0 at {endpoint} within {endpoint.timeout_seconds:g} s: "
                f"{reason}. Start node 0 as well, and check --master-addr and --master-port."
            )
        if countdown.is_notice_due():
            log(
                f"{own.name} has waited {countdown.waited:.0f} s of {endpoint.timeout_seconds:g} s for node 0 at "
                f"{endpoint}: {reason}."
            )
        time.sleep(RETRY_SECONDS)
