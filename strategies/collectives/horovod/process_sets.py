"""The process sets that Horovod needs for a mesh, as plain data, and checks of a mesh against Horovod."""

from __future__ import annotations

import itertools
from collections.abc import Collection, Iterable, Mapping, Sequence

from strategies.topology.axes import KNOWN_AXES
from strategies.topology.mesh import DeviceMesh

#: Ascending ranks, which identify a process set.
Ranks = tuple[int, ...]


def group_ranks(mesh: DeviceMesh, index: int, axis: str) -> tuple[int, ...]:
    """Returns the ranks of the group along `axis` that contains a flat index, in the order of the axis."""
    return tuple(mesh.ranks[i] for i in mesh.group(index, axis))


def process_sets(
    meshes: Iterable[DeviceMesh], channel_axes: Sequence[str] = ("pipe",), *, all_pairs: bool = False
) -> list[Ranks]:
    """Returns the process sets that the collectives and channels of the meshes need, each once, in a fixed order.

    Groups of one process and of all processes need none.

    Args:
        meshes: meshes over the same processes, one coordinate each.
        channel_axes: axes with channels between two positions.
        all_pairs: true for channels between any two positions, false for those between neighbours only; the last
            position and the first are neighbours, too.

    Raises:
        ValueError: an unknown axis.
    """
    found: dict[Ranks, None] = {}
    for mesh in meshes:
        wanted = [group for axis in KNOWN_AXES for group in mesh.groups(axis)]
        for axis in channel_axes:
            wanted += [pair for group in mesh.groups(axis) for pair in _pairs(group, all_pairs)]
        for members in wanted:
            if 1 < len(members) < mesh.size:
                found.setdefault(tuple(sorted(mesh.ranks[i] for i in members)))
    return list(found)


def channel_sets(mesh: DeviceMesh, axis: str, source: int, target: int) -> list[Ranks]:
    """Returns the process sets of a channel between two positions, one in each group along `axis`."""
    if mesh.size == 2:
        return []
    return [tuple(sorted((mesh.ranks[group[source]], mesh.ranks[group[target]]))) for group in mesh.groups(axis)]


def _pairs(group: Sequence[int], all_pairs: bool) -> Iterable[tuple[int, int]]:
    if len(group) < 2:
        return ()
    if all_pairs:
        return itertools.combinations(group, 2)
    return zip(group, [*group[1:], group[0]], strict=True)


def check_coordinates(mesh: DeviceMesh) -> None:
    """Checks that each process owns one coordinate of the mesh.

    Raises:
        ValueError: it does not.
    """
    if sorted(mesh.ranks) != list(range(mesh.size)):
        raise ValueError(
            f"With Horovod every process owns one coordinate of the mesh: create it with "
            f"DeviceMesh.from_processes(n, axes). Received: mesh {mesh.axes} over the ranks {list(mesh.ranks)}."
        )


def check_world(mesh: DeviceMesh, num_processes: int) -> None:
    """Checks that the mesh covers all of Horovod's processes.

    Raises:
        ValueError: it does not.
    """
    if mesh.size != num_processes:
        raise ValueError(
            f"The mesh {mesh.axes} needs {mesh.size} processes, but Horovod runs {num_processes}. Start that many "
            f"(horovodrun -np {mesh.size} ...), or give the mesh sizes that multiply to {num_processes}."
        )


def check_promised_world(meshes: Iterable[DeviceMesh], environment: Mapping[str, str]) -> None:
    """Checks that the meshes cover all processes announced by horovodrun or mpirun in the environment, if any.

    Raises:
        ValueError: they do not.
    """
    names = ("HOROVOD_SIZE", "OMPI_COMM_WORLD_SIZE")
    promised = next((environment[name] for name in names if name in environment), None)
    # The size of an elastic job changes.
    if promised is not None and environment.get("HOROVOD_ELASTIC", "0") == "0":
        for mesh in meshes:
            check_world(mesh, int(promised))


def check_agreement(meshes: Sequence[DeviceMesh], ranks: Sequence[int]) -> None:
    """Checks that all processes pass the same mesh and their rank in Horovod; both lists are in the order of ranks.

    Raises:
        ValueError: they do not.
    """
    for i, (mesh, rank) in enumerate(zip(meshes, ranks, strict=True)):
        check_coordinates(mesh)
        check_world(mesh, len(meshes))
        if mesh != meshes[0] or rank != i:
            raise ValueError(
                f"All processes must pass the same mesh, and each its rank in Horovod. Received: rank {rank} and "
                f"{mesh} in process {i}; rank {ranks[0]} and {meshes[0]} in process 0."
            )


def check_running(needed: Iterable[Ranks], running: Collection[Ranks]) -> None:
    """Checks that Horovod has all needed process sets; every process knows all of them, member or not.

    Raises:
        ValueError: it does not.
    """
    missing = [list(ranks) for ranks in needed if ranks not in running]
    if missing:
        raise ValueError(
            f"Horovod runs without the process sets {missing}. Do not call hvd.init() yourself: let the strategy, or "
            f"strategies.collectives.horovod.start, do it for all meshes and channels that are needed; or set "
            f"HOROVOD_DYNAMIC_PROCESS_SETS=1 before it."
        )
