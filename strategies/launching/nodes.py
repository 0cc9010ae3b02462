"""The rendezvous of the nodes of a job: node 0 listens, the others connect to it. Standard library only."""

import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strategies.launching.endpoint import Endpoint
from strategies.launching.messages import Node
from strategies.launching.rendezvous_client import join
from strategies.launching.rendezvous_server import RendezvousServer
from strategies.launching.wire import Channel


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
        return Rendezvous({}, {0: join(own, endpoint, log)})
    with endpoint.listen(own) as listener:
        return Rendezvous(*RendezvousServer(own, listener, endpoint, log).wait(check))
