"""The replicas of a strategy in this process, their devices, and their process groups along "data"."""

from __future__ import annotations

from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.collectives.loopback import LOOPBACK
from strategies.collectives.process_group import ProcessGroup


@dataclass(frozen=True)
class DataParallelGroup:
    """The devices that hold one part of all replicas of this process, and their process group.

    Attributes:
        devices: full names, one for each local replica.
        process_group: joins the first device to the devices that hold the part in replicas of other processes.
    """

    devices: tuple[str, ...]
    process_group: ProcessGroup = LOOPBACK


@dataclass(frozen=True)
class ReplicaLayout:
    """The replicas of a job as this process sees them.

    Attributes:
        groups: one group for each part of a replica that this process owns.
    """

    groups: tuple[DataParallelGroup, ...]

    @property
    def devices(self) -> tuple[str, ...]:
        """The first device of each local replica."""
        return self.groups[0].devices

    @property
    def process_group(self) -> ProcessGroup:
        """The group of the processes along the data axis, this one included."""
        return self.groups[0].process_group

    @property
    def num_local(self) -> int:
        """The number of replicas in this process."""
        return len(self.devices)

    @property
    def num_processes(self) -> int:
        """The number of processes along the data axis."""
        return self.process_group.num_processes

    @property
    def num_replicas(self) -> int:
        """The size of the data axis."""
        return self.num_processes * self.num_local

    @property
    def first_replica(self) -> int:
        """The index, on the data axis, of this process' first replica."""
        return self.process_group.rank * self.num_local

    def group_of(self, where: Any) -> int:
        """Returns the number of the group on whose devices a tensor or distributed value is; 0 if there is none."""
        devices = tuple(getattr(value, "device", "") for value in local_values(where))
        return next((k for k, group in enumerate(self.groups) if group.devices == devices), 0)

    def mirror(self, variables: Iterable[Any]) -> None:
        """Copies Keras variables from the first local replica to the others, after an update that changed only some.

        Variables without a component on every replica, such as slots of one device, are left as they are.
        """
        for variable in variables:
            first, *others = local_values(variable.value)
            if len(others) + 1 < self.num_local:
                continue
            for component in others:
                with tf.device(component.device):
                    component.assign(first.read_value(), read_value=False)

    def copied_to(self, group: int, total: Any) -> Any:
        """Copies a tensor or IndexedSlices to every device of a group; returns it unchanged if there is one device."""
        copies = []
        for device in self.groups[group].devices:
            with tf.device(device):
                copies.append(tf.nest.map_structure(tf.identity, total, expand_composites=True))
        return PerReplica(tuple(copies)) if len(copies) > 1 else total

    def per_replica(self, values: Sequence[Any]) -> list[Any]:
        """Wraps plain values as `PerReplica`: with one local replica, TensorFlow passes local values unwrapped.

        With one replica in all, a value is the sum already.
        """
        if self.num_replicas == 1 or self.num_local > 1:
            return list(values)
        return [v if v is None or isinstance(v, tf.distribute.DistributedValues) else PerReplica((v,)) for v in values]


def local_values(value: Any) -> Sequence[Any]:
    """Returns each local replica's component of a value; a plain value is its only component."""
    return value.values if isinstance(value, tf.distribute.DistributedValues) else (value,)
