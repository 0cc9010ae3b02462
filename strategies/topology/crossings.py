"""Mesh axes that cross processes or hosts, and what they send in a step. Pure: no imports but the mesh."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from strategies.topology.axes import AXES
from strategies.topology.mesh import DeviceMesh

_COSTS = {
    "data": "the gradients of a process' own part once a step, 2 (n - 1) / n times their bytes from each process",
    "expert": (
        "4 messages per layer of experts and a small one, 2 forward and 2 backward: the features of all tokens, once "
        "for each of their experts, in parts of one size"
    ),
    "pipe": (
        "at each cut between stages 2 messages per micro-batch, the activations of its rows forward and their "
        "gradients backward, rows x features x bytes of a number each; they overlap with computing"
    ),
    "tensor": (
        "4 all-reduces per transformer block or pair of split layers, 2 forward and 2 backward, of rows x features "
        "each, 2 (n - 1) / n times their bytes from each process; computing waits for them"
    ),
}


@dataclass(frozen=True)
class Crossing:
    """An axis along which coordinates belong to several processes.

    Attributes:
        axis: its name.
        num_processes: the number of processes along it.
        num_hosts: the number of hosts along it.
    """

    axis: str
    num_processes: int
    num_hosts: int


def crossings(mesh: DeviceMesh, nodes: Sequence[int]) -> tuple[Crossing, ...]:
    """Returns the axes that cross processes, in the order of `AXES`.

    Args:
        mesh: the mesh over the devices of all processes.
        nodes: the host of each process, by rank.
    """
    found = []
    for axis in AXES:
        ranks = [{mesh.ranks[i] for i in group} for group in mesh.groups(axis)]
        num_hosts = max(len({nodes[rank] for rank in each}) for each in ranks)
        if max(map(len, ranks)) > 1:
            found.append(Crossing(axis, max(map(len, ranks)), num_hosts))
    return tuple(found)


def description(mesh: DeviceMesh, nodes: Sequence[int]) -> str:
    """Returns the log message for a mesh over several processes: the axes that cross them, and what these send."""
    sizes = ", ".join(f"{name}={size}" for name, size in mesh.axes.items())
    num_local = mesh.size // mesh.num_processes
    lines = [
        f"Mesh {sizes} over {mesh.num_processes} processes of {_counted(num_local, 'device')} on "
        f"{_counted(len(set(nodes)), 'host')}."
    ]
    for each in crossings(mesh, nodes):
        hosts = f" and {each.num_hosts} hosts" if each.num_hosts > 1 else ""
        lines.append(f"'{each.axis}' crosses {each.num_processes} processes{hosts}: {_COSTS[each.axis]}.")
    return " ".join(lines)


def warning(mesh: DeviceMesh, nodes: Sequence[int]) -> str | None:
    """Returns a warning if the axis "tensor" crosses hosts, else None."""
    if all(each.axis != "tensor" or each.num_hosts == 1 for each in crossings(mesh, nodes)):
        return None
    per_host = min(nodes.count(node) for node in set(nodes)) * mesh.size // mesh.num_processes
    return (
        "The mesh axis 'tensor' crosses hosts: every block waits for its messages, four times a step. Give 'tensor' a "
        f"size that divides the {_counted(per_host, 'device')} of a host, and let 'pipe' or 'data' cross hosts. "
        f"Received: {mesh.axes}."
    )


def _counted(number: int, noun: str) -> str:
    return f"{number} {noun}" if number == 1 else f"{number} {noun}s"
