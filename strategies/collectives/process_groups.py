"""The process groups of one process: one along each mesh axis that crosses processes, one of the whole job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from strategies.collectives.base import Collectives
from strategies.collectives.process_group import ProcessGroup
from strategies.topology.mesh import DeviceMesh
from strategies.topology.placement import local_grid, process_mesh


@dataclass(frozen=True)
class ProcessGroups:
    """The groups in which a process takes part; without other processes there are none.

    Attributes:
        job: all processes, by rank.
        data: for each part of a replica that this process owns, the processes that own the same part of other replicas;
            empty where no other process does.
        model: by axis, "pipe" or "tensor", the processes that own the other parts of the same replica along it.
        collectives: between the processes, each of which is one coordinate: pipelines make their channels here.
    """

    job: ProcessGroup | None = None
    data: tuple[ProcessGroup, ...] = ()
    model: Mapping[str, ProcessGroup] = field(default_factory=dict)
    collectives: Collectives | None = None

    @property
    def data_of_first(self) -> ProcessGroup | None:
        """The processes that own the same part of other replicas as the first part of this one."""
        return self.data[0] if self.data else None

    @property
    def spans_processes(self) -> bool:
        """True if a replica's devices belong to several processes."""
        return bool(self.model)

    def sum_over_replica(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum of what the processes of this replica have, the same bits on all of them.

        One message where one axis crosses processes, or the replica is the job; else one along "tensor" and one along
        "pipe".
        """
        groups = [self.model[axis] for axis in ("tensor", "pipe") if axis in self.model]
        if len(groups) > 1 and self.job is not None and not self.data:
            groups = [self.job]
        for group in groups:
            [value] = group.sum([value])
        return value


def meshes_between(mesh: DeviceMesh) -> list[DeviceMesh]:
    """Returns the meshes of processes over which collectives are needed, one for each part that a process owns, then
    one of all processes in a row if the first of them does not have them so.

    Args:
        mesh: over the devices of several processes.
    """
    firsts = local_grid(mesh, mesh.ranks[0])[0]
    found = [process_mesh(mesh, device) for device in firsts]
    if found[0].axis_size("data") < mesh.num_processes:
        found.append(DeviceMesh.from_processes(mesh.num_processes, local_devices=firsts[:1]))
    return found


def join(
    mesh: DeviceMesh,
    make_collectives: Callable[[DeviceMesh], Collectives],
    make_group: Callable[[Collectives, str, int], ProcessGroup],
) -> ProcessGroups:
    """Returns the groups of this process in a mesh over the devices of several processes. All processes call it alike.

    Args:
        mesh: whose processes own boxes of one size.
        make_collectives: joins the processes at the coordinates of a mesh of processes.
        make_group: returns the group along an axis of such; takes the number of the owned part whose sums it makes.
    """
    between = meshes_between(mesh)
    made = [make_collectives(each) for each in between]
    num_parts = len(local_grid(mesh, mesh.ranks[0])[0])
    crossing = [axis for axis in ("pipe", "tensor") if between[0].axis_size(axis) > 1]
    data: Sequence[ProcessGroup] = ()
    if between[0].axis_size("data") > 1:
        data = [make_group(each, "data", part) for part, each in enumerate(made[:num_parts])]
    job = make_group(made[-1], "data", 0) if crossing else data[0]
    return ProcessGroups(job, tuple(data), {axis: make_group(made[0], axis, 0) for axis in crossing}, made[0])
