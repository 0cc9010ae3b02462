"""The process groups of one process: one along each mesh axis that crosses processes, one of the whole job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import tensorflow as tf

from strategies.collectives.base import Collectives
from strategies.collectives.loopback import LOOPBACK
from strategies.collectives.process_group import ProcessGroup
from strategies.topology.mesh import DeviceMesh
from strategies.topology.placement import local_grid, process_mesh, sharding_mesh


@dataclass(frozen=True)
class ShardingProcessGroups:
    """The process groups over which the optimizer state of one part of a replica is sharded.

    Attributes:
        inside: the processes that hold the other slices.
        between: the processes of other sharding groups that hold the same slices.
    """

    inside: ProcessGroup
    between: ProcessGroup = LOOPBACK


@dataclass(frozen=True)
class ProcessGroups:
    """The groups that contain this process; in a job of one process, the loopback group alone.

    Attributes:
        job: all processes, by rank.
        data: for each part of a replica that this process owns, the processes that own the same part of other replicas;
            empty if no other process does.
        model: by axis, "pipe" or "tensor", the processes that own the other parts of the same replica along it.
        collectives: the collectives between the processes, one coordinate each; pipelines create channels with them.
        sharding: for each part that this process owns, the groups that shard its optimizer state; empty if none do.
    """

    job: ProcessGroup = LOOPBACK
    data: tuple[ProcessGroup, ...] = ()
    model: Mapping[str, ProcessGroup] = field(default_factory=dict)
    collectives: Collectives | None = None
    sharding: tuple[ShardingProcessGroups, ...] = ()

    @property
    def data_of_first(self) -> ProcessGroup | None:
        """The group in `data` of the first part that this process owns; None if there is none."""
        return self.data[0] if self.data else None

    @property
    def spans_processes(self) -> bool:
        """True if a replica's devices belong to several processes."""
        return bool(self.model)

    def sum_over_replica(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum of `value` over the processes of this replica, the same bits on all of them.

        It takes one all-reduce if one axis crosses processes or the replica is the job; else one along "tensor" and one
        along "pipe".
        """
        groups = [self.model[axis] for axis in ("tensor", "pipe") if axis in self.model]
        if len(groups) > 1 and not self.data:
            groups = [self.job]
        for group in groups:
            [value] = group.sum([value])
        return value


def meshes_between(mesh: DeviceMesh, num_sharing: int = 1) -> list[DeviceMesh]:
    """Returns the meshes of processes over which collectives are needed.

    There is one mesh for each part that a process owns; one of all processes along "data", if the first mesh is not
    that; and, if the processes form several sharding groups, one mesh with these groups for each part.

    Args:
        mesh: the mesh over the devices of several processes.
        num_sharing: the number of processes along "data" over which the optimizer is sharded.
    """
    firsts = local_grid(mesh, mesh.ranks[0])[0]
    found = [process_mesh(mesh, device) for device in firsts]
    if found[0].axis_size("data") < mesh.num_processes:
        found.append(DeviceMesh.from_processes(mesh.num_processes, local_devices=firsts[:1]))
    if 1 < num_sharing < found[0].axis_size("data"):
        found += [sharding_mesh(mesh, device, num_sharing) for device in firsts]
    return found


def join(
    mesh: DeviceMesh,
    make_collectives: Callable[[DeviceMesh], Collectives],
    make_group: Callable[[Collectives, str, int], ProcessGroup],
    num_sharing: int = 1,
) -> ProcessGroups:
    """Returns the groups of this process in a mesh over the devices of several processes. All processes call it alike.

    Args:
        mesh: the mesh; its processes own boxes of one size.
        make_collectives: returns the collectives over a mesh of processes.
        make_group: returns the group along an axis of such collectives, for the owned part of the given number.
        num_sharing: the number of processes along "data" over which the optimizer is sharded; 1 if it is not.
    """
    between = meshes_between(mesh, num_sharing)
    made = [make_collectives(each) for each in between]
    num_parts = len(local_grid(mesh, mesh.ranks[0])[0])
    in_groups: Sequence[Collectives] = ()
    if 1 < num_sharing < between[0].axis_size("data"):
        made, in_groups = made[:-num_parts], made[-num_parts:]
    crossing = [axis for axis in ("pipe", "tensor") if between[0].axis_size(axis) > 1]
    data: Sequence[ProcessGroup] = ()
    if between[0].axis_size("data") > 1:
        data = [make_group(each, "data", part) for part, each in enumerate(made[:num_parts])]
    job = make_group(made[-1], "data", 0) if crossing else data[0]
    sharding = [
        ShardingProcessGroups(make_group(each, "shard", part), make_group(each, "replicate", part))
        for part, each in enumerate(in_groups)
    ]
    if num_sharing == between[0].axis_size("data"):
        sharding = [ShardingProcessGroups(group) for group in data]
    model = {axis: make_group(made[0], axis, 0) for axis in crossing}
    return ProcessGroups(job, tuple(data), model, made[0], tuple(sharding))
