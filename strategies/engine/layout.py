"""The replicas of a strategy: those of this process, their devices, and what joins them to others along "data"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.collectives.process_group import ProcessGroup


@dataclass(frozen=True)
class DataParallelGroup:
    """The devices that hold one part of all replicas of this process, and their process group.

    Attributes:
        devices: full names, one for each local replica.
        process_group: joins the first of them to those that hold the part in the replicas of other processes; None
            where there are none.
    """

    devices: tuple[str, ...]
    process_group: ProcessGroup | None = None


@dataclass(frozen=True)
class ReplicaLayout:
    """The replicas of a job as this process sees them.

    Attributes:
        groups: one for each part of a replica that this process owns.
    """

    groups: tuple[DataParallelGroup, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """The first device of each local replica."""
        return self.groups[0].devices

    @property
    def process_group(self) -> ProcessGroup | None:
        """Joins this process to those that hold other replicas; None where there are none."""
        return self.groups[0].process_group

    @property
    def num_local(self) -> int:
        """The number of replicas in this process."""
        return len(self.devices)

    @property
    def num_processes(self) -> int:
        """The number of processes along the data axis."""
        return 1 if self.process_group is None else self.process_group.num_processes

    @property
    def num_replicas(self) -> int:
        """The size of the data axis."""
        return self.num_processes * self.num_local

    @property
    def first_replica(self) -> int:
        """The index, on the data axis, of this process' first replica."""
        return 0 if self.process_group is None else self.process_group.rank * self.num_local

    def group_of(self, where: Any) -> int:
        """Returns the part on whose devices a distributed value, or a tensor, is; 0 if it is on those of none."""
        devices = tuple(getattr(value, "device", "") for value in local_values(where))
        return next((k for k, group in enumerate(self.groups) if group.devices == devices), 0)

    def mirror(self, variables: Iterable[Any]) -> None:
        """Gives all local replicas what the first has of Keras variables that an update changed for some of them only.

        Variables of which not every replica has a component, such as slots of one device, are left as they are.
        """
        for variable in variables:
            first, *others = local_values(variable.value)
            if len(others) + 1 < self.num_local:
                continue
            for component in others:
                with tf.device(component.device):
                    component.assign(first.read_value(), read_value=False)

    def copied_to(self, group: int, total: Any) -> Any:
        """Returns a sum, a tensor or slices, on each device of a group; as it is, if there is one device."""
        copies = []
        for device in self.groups[group].devices:
            with tf.device(device):
                copies.append(tf.nest.map_structure(tf.identity, total, expand_composites=True))
        return PerReplica(tuple(copies)) if len(copies) > 1 else total

    def per_replica(self, values: Sequence[Any]) -> list[Any]:
        """Returns the values, those marked as local that TensorFlow hands over plain: where one replica is here."""
        if self.process_group is None or self.num_local > 1:
            return list(values)
        return [v if v is None or isinstance(v, tf.distribute.DistributedValues) else PerReplica((v,)) for v in values]


def local_values(value: Any) -> Sequence[Any]:
    """Returns what each local replica has of a value; of a plain one, that one."""
    return value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)
