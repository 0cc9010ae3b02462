"""Which process sets Horovod needs for a mesh, as plain data."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Sequence

from strategies.mesh import AXES, DeviceMesh

#: Ranks, ascending: what identifies a process set.
Ranks = tuple[int, ...]


def group_ranks(mesh: DeviceMesh, index: int, axis: str) -> tuple[int, ...]:
    """The ranks of the group along `axis` that holds a flat index, in the order of the axis."""
    return tuple(mesh.ranks[i] for i in mesh.group(index, axis))


def process_sets(
    meshes: Iterable[DeviceMesh], channel_axes: Sequence[str] = ("pipe",), *, all_pairs: bool = False
) -> list[Ranks]:
    """The process sets that collectives and channels of all the meshes need, each once, in a fixed order.

    Groups of one and groups of the whole world need none.

    Args:
        meshes: all over the same processes, one coordinate each.
        channel_axes: axes along which messages pass between two positions.
        all_pairs: whether any two positions exchange messages, or only neighbours; the last position and the
            first are neighbours, too.
    """
    found: dict[Ranks, None] = {}
    for mesh in meshes:
        wanted = [group for axis in AXES for group in mesh.groups(axis)]
        for axis in AXES:
            if axis in channel_axes:
                wanted += [pair for group in mesh.groups(axis) for pair in _pairs(group, all_pairs)]
        for members in wanted:
            if 1 < len(members) < mesh.size:
                found.setdefault(tuple(sorted(mesh.ranks[i] for i in members)))
    return list(found)


def _pairs(group: Sequence[int], all_pairs: bool) -> Iterable[tuple[int, int]]:
    if len(group) < 2:
        return ()
    if all_pairs:
        return itertools.combinations(group, 2)
    return zip(group, [*group[1:], group[0]], strict=True)


def check_coordinates(mesh: DeviceMesh) -> None:
    """The mesh has one coordinate in each process.

    Raises:
        ValueError: it has not.
    """
    if sorted(mesh.ranks) != list(range(mesh.size)):
        raise ValueError(
            f"Over Horovod every process owns one coordinate of the mesh: make it with "
            f"DeviceMesh.from_processes(n, axes). Received: mesh {mesh.axes} over the ranks {list(mesh.ranks)}."
        )


def check_world(mesh: DeviceMesh, num_processes: int) -> None:
    """The mesh covers all of Horovod's processes.

    Raises:
        ValueError: it does not.
    """
    if mesh.size != num_processes:
        raise ValueError(
            f"The mesh {mesh.axes} needs {mesh.size} processes, but Horovod runs {num_processes}. Start as many "
            f"(horovodrun -np {mesh.size} ...), or give the mesh sizes that multiply to {num_processes}."
        )
