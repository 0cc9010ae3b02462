"""Sums gradients of weights whose rows are sharded over replicas: experts and tables.

The row exchange has sent each replica the gradient terms of its whole group for its rows. So the replica's gradient is
the group's sum, whether the replica has rows of the batch or not, and only sums between groups are left.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies.collectives.fixed_order import sum_in_order
from strategies.collectives.process_group import ProcessGroup
from strategies.collectives.process_groups import ShardingProcessGroups
from strategies.replica.slices import Lookups, side_by_side
from strategies.replica.weight_slices import WeightSlice
from strategies.sharding.partition import Partition
from strategies.sharding.variables import is_row_sharded
from strategies.steps.layout import ReplicaLayout, local_values
from strategies.steps.slices_across import slices_across


class RowShardedGradients:
    """Sums the gradients of each replica's own rows over the groups of replicas.

    Args:
        layout: the replicas.
        processes: for each owned part of a replica, the process groups over which its weights are sharded; empty if
            each group of replicas is inside one process.
        part_of: returns the number of the owned part that holds a Keras variable; None if other processes hold it.
    """

    def __init__(
        self,
        layout: ReplicaLayout,
        processes: Sequence[ShardingProcessGroups],
        part_of: Callable[[Any], int | None],
    ) -> None:
        self._layout = layout
        self._processes = processes
        self._part_of = part_of

    def sums(self, partition: Partition, values: Sequence[Any]) -> dict[int, Any]:
        """Returns, by slice id, the sum over all groups for each slice that this process owns.

        Args:
            partition: all weights, the row-sharded ones and others.
            values: the weights' gradients; see `ShardedUpdates.run`.
        """
        found: dict[int, dict[int, Any]] = {}
        for part, each, total in self._local_sums(partition, values):
            found.setdefault(part, {})[id(each)] = total
        for part, own in found.items():
            with tf.device(self._layout.groups[part].devices[0]):
                own |= _summed(self._between(part), own)
        return {key: total for own in found.values() for key, total in own.items()}

    def _local_sums(self, partition: Partition, values: Sequence[Any]) -> Iterator[tuple[int, WeightSlice, Any]]:
        """Yields (part, slice, sum over this process' groups)."""
        for each, position in zip(partition.slices, partition.positions, strict=True):
            variable, value = partition.variables[position], values[position]
            if value is not None and each.is_owned and is_row_sharded(variable):
                with tf.device(each.device):
                    terms = [local_values(value)[replica] for replica in each.replicas]
                    are_slices = all(isinstance(term, tf.IndexedSlices) for term in terms)
                    total = side_by_side(terms) if are_slices else sum_in_order(map(tf.convert_to_tensor, terms))
                yield self._part_of(variable) or 0, each, total

    def _between(self, part: int) -> ProcessGroup:
        """Returns the group of the processes that hold the same slices of a part."""
        return self._processes[part].between if self._processes else self._layout.groups[part].process_group


def _summed(between: ProcessGroup, totals: dict[int, Any]) -> dict[int, Any]:
    """Returns the sums over processes of tensors or IndexedSlices, under the keys of `totals`."""
    slices = {key: each for key, each in totals.items() if isinstance(each, tf.IndexedSlices)}
    dense = {key: each for key, each in totals.items() if key not in slices}
    found: dict[int, Any] = {key: slices_across(between, Lookups((), (each,))) for key, each in slices.items()}
    return found | dict(zip(dense, between.sum(list(dense.values())), strict=True))
