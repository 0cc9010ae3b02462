"""The meeting of the nodes of a job: node 0 listens, the others connect to it. Standard library only."""

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
    """The nodes of the job, known on node 0 only, and the links of this node to others, both by node rank."""

    nodes: Mapping[int, Node]
    links: Mapping[int, Channel]


def announcement(node_rank: int, num_nodes: int, ports: tuple[int, ...], host: str) -> Node:
    """Returns this node as it announces itself; see `Node`."""
    return Node(node_rank, num_nodes, host, ports, socket.gethostname(), os.getpid(), secrets.token_hex(8))


def say_on_stderr(text: str) -> None:
    """Prints a line of the launcher."""
    print(f"strategies.launch: {text}", file=sys.stderr, flush=True)


def meet(
    own: Node,
    place: Place,
    check: Callable[[Mapping[int, Node]], None] = lambda nodes: None,
    say: Callable[[str], None] = say_on_stderr,
) -> Met:
    """Waits for all nodes of the job.

    Args:
        own: this node; without a host it is reached at the address of its connection to node 0, node 0 at that of
            `place`.
        place: where node 0 listens.
        check: on node 0, raises LaunchError for nodes that do not fit together.
        say: prints a line about the wait.

    Raises:
        LaunchError: on every node that has arrived, if a node is missing, two have the same rank, or they disagree.
    """
    if own.node_rank > 0:
        return Met({}, {0: join(own, place, say)})
    with place.listen(own) as listener:
        return Met(*Gathering(own, listener, place, say).wait(check))
