"""Placement of a mesh on processes: the coordinates that each process owns. Pure: no imports but the mesh.

Across processes the axes have one order, "tensor" fastest, then "pipe", "expert", "data", in whatever order a program
names them, so that the peers that communicate most share a host. A process owns consecutive coordinates: one (a GPU of
its own), several shards of one stage, whole stages, or whole replicas.
"""

from __future__ import annotations

import math
from collections.abc import Mapping, Sequence

from strategies.topology.axes import AXES, SHARDING_AXES, resolve_sizes
from strategies.topology.mesh import DeviceMesh


def has_model_axes(axes: Mapping[str, int] | None) -> bool:
    """Returns True if a mesh has an axis other than "data" and "expert", so that a replica spans several devices."""
    return any(name not in ("data", "expert") and size != 1 for name, size in (axes or {}).items())


def mesh_over_processes(num_processes: int, axes: Mapping[str, int] | None, local_devices: Sequence[str]) -> DeviceMesh:
    """Returns the mesh over the devices of all processes; with several processes its axes are in the common order.

    Args:
        num_processes: the world size.
        axes: as in `DeviceMesh.from_devices`; the sizes multiply to ``num_processes * len(local_devices)``.
        local_devices: device names inside one process, equal in all.

    Raises:
        ValueError: as `DeviceMesh.from_processes`.
    """
    if num_processes > 1 and axes:
        # Checked before the axes are reordered: errors show them as they were given.
        sizes = resolve_sizes(axes, num_processes * len(local_devices))
        axes = {name: sizes[name] for name in AXES if name in sizes}
    return DeviceMesh.from_processes(num_processes, axes, local_devices=local_devices)


def process_mesh(mesh: DeviceMesh, device: str) -> DeviceMesh:
    """Returns the mesh of processes, one coordinate each, for a mesh over their devices.

    Args:
        mesh: the mesh over the devices of all processes.
        device: the device that represents a process; the same name in all of them.
    """
    sizes = {name: mesh.axis_size(name) // len(owned) for name, owned in mesh.box(mesh.ranks[0]).items()}
    return DeviceMesh.from_processes(mesh.num_processes, sizes, local_devices=[device])


def sharding_mesh(mesh: DeviceMesh, device: str, num_together: int) -> DeviceMesh:
    """Returns the mesh of processes, one coordinate each, with "data" cut into "replicate" and "shard".

    Args:
        mesh: the mesh over the devices of several processes, with "data" as its first axis.
        device: as for :func:`process_mesh`.
        num_together: the number of processes of a group, adjacent along "data".
    """
    between = process_mesh(mesh, device)
    others = {name: size for name, size in between.axes.items() if name != "data"}
    sizes = (between.axis_size("data") // num_together, num_together, *others.values())
    return DeviceMesh((*SHARDING_AXES, *others), sizes, between.ranks, between.devices)


def replica_mesh(mesh: DeviceMesh, rank: int) -> DeviceMesh:
    """Returns the mesh of one replica: the axes other than "data", for the first one in which `rank` takes part."""
    first = mesh.local_indices(rank)[0]
    parts = _parts_of_replica(mesh, mesh.position(first, "data"))
    axes = {name: size for name, size in mesh.axes.items() if name != "data"} or {"data": 1}
    return DeviceMesh(
        tuple(axes), tuple(axes.values()), tuple(mesh.ranks[i] for i in parts), tuple(mesh.devices[i] for i in parts)
    )


def owned_parts(mesh: DeviceMesh, rank: int) -> tuple[int, ...]:
    """Returns the parts of a replica that process `rank` owns, ascending: the same in each of its replicas."""
    owned = set(mesh.local_indices(rank))
    first = mesh.position(min(owned), "data")
    return tuple(part for part, index in enumerate(_parts_of_replica(mesh, first)) if index in owned)


def local_grid(mesh: DeviceMesh, rank: int) -> tuple[tuple[str, ...], ...]:
    """Returns the device names of process `rank` as ``[local replica][owned part]``."""
    parts = owned_parts(mesh, rank)
    replicas = sorted({mesh.position(index, "data") for index in mesh.local_indices(rank)})
    grid = []
    for replica in replicas:
        indices = _parts_of_replica(mesh, replica)
        grid.append(tuple(mesh.devices[indices[part]] for part in parts))
    return tuple(grid)


def spans_processes(mesh: DeviceMesh) -> bool:
    """Returns True if the devices of a replica belong to several processes."""
    span = math.prod(size for name, size in mesh.axes.items() if name != "data")
    return mesh.num_processes > 1 and span * mesh.num_processes > mesh.size


def _parts_of_replica(mesh: DeviceMesh, replica: int) -> tuple[int, ...]:
    """Returns the flat indices of a replica, in row-major order of the other axes."""
    return (
        tuple(group[replica] for group in mesh.groups("data")) if "data" in mesh.axis_names else tuple(range(mesh.size))
    )
