"""The rendezvous of the nodes of a job: node 0 listens, the others connect to it. Standard library only."""

import os
import secrets
import socket
import sys
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from strategies.launching.gathering import Gathering
from strategies.launching.joining import join
from strategies.launching.messages import Node
from strategies.launching.place import Place
from strategies.launching.wire import Channel


@dataclass(frozen=True)
class Met:
    """The result of a rendezvous, by node rank: the nodes of the job (on node 0 only), and this node's links."""

    nodes: Mapping[int, Node]
    links: Mapping[int, Channel]


def announcement(node_rank: int, num_nodes: int, ports: tuple[int, ...], host: str) -> Node:
    """Returns the announcement of this node; see `Node`."""
    return Node(node_rank, num_nodes, host, ports, socket.gethostname(), os.getpid(), secrets.token_hex(8))


def say_on_stderr(text: str) -> None:
    """Prints a line of the launcher on stderr."""
    print(f"strategies.launch: {text}", file=sys.stderr, flush=True)


def meet(
    own: Node,
    place: Place,
    check: Callable[[Mapping[int, Node]], None] = lambda nodes: None,
    say: Callable[[str], None] = say_on_stderr,
) -> Met:
    """Waits for all nodes of the job, and returns them and this node's links.

    Args:
        own: this node. A node after node 0 may have no host: it announces the address of its connection to node 0.
        place: the address at which node 0 listens.
        check: on node 0, raises LaunchError for nodes that do not fit together.
        say: prints a line about the wait.

    Raises:
        LaunchError: on every node that has arrived, if a node is missing, two have the same rank, or they disagree.
    """
    if own.node_rank > 0:
        return Met({}, {0: join(own, place, say)})
    with place.listen(own) as listener:
        return Met(*Gathering(own, listener, place, say).wait(check))
