"""All-gathers whole weights from their shards, in one process or across processes."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.batches.shares import NotAlikeError
from strategies.collectives.descriptions import carrying, listed
from strategies.collectives.process_groups import ShardingProcessGroups
from strategies.op_names.scopes import in_process
from strategies.replica.deferred import in_shapes_only, is_remote
from strategies.replica.driving import current_driver
from strategies.replica.recording import unrecorded
from strategies.sharding.partition import laid_out, taken_apart
from strategies.sharding.units import Gone, bucket_of
from strategies.sharding.variables import ShardedVariable, shards_of
from strategies.steps.exported_weights import whole_in_file
from strategies.steps.layout import ReplicaLayout
from strategies.steps.step import Steps
from strategies.topology.sharding import ShardingGroups


class AllGather:
    """All-gathers the weights of one unit, outside of steps and in steps.

    Args:
        layout: the replicas.
        steps: the steps of these replicas.
        groups: the groups of replicas over which weights are sharded.
        processes: for each owned part, the process groups over which its weights are sharded; empty if this process
            holds all shards.
    """

    def __init__(
        self,
        layout: ReplicaLayout,
        steps: Steps,
        groups: ShardingGroups,
        processes: Sequence[ShardingProcessGroups],
    ) -> None:
        self._layout = layout
        self._steps = steps
        self._groups = groups
        self._processes = processes

    @property
    def crosses_processes(self) -> bool:
        """True if other processes hold some of the shards."""
        return bool(self._processes)

    @property
    def has_several_groups(self) -> bool:
        """True if several groups of replicas have all shards each."""
        return self._groups.size < self._groups.num_replicas

    def __call__(self, variables: Sequence[ShardedVariable | Gone], replica: int) -> list[Any]:
        """Returns whole weights of one unit on the device of a local replica. All processes with their shards call it.

        The result for a deleted weight may be None.
        """
        with unrecorded():
            if any(not isinstance(v, Gone) and is_remote(v) for v in variables):
                return [self._elsewhere(v) for v in variables]
            if not self._processes and not tf.executing_eagerly() and not self._steps.context.shares:
                return [None if isinstance(v, Gone) else whole_in_file(v) for v in variables]
            if not self._processes:
                return self._local(variables, replica)
            if in_shapes_only():
                return [_placeholder_like(variable) for variable in variables]
            if current_driver() is not None:
                return [tf.constant(shards_of(v).numpy()) for v in variables if not isinstance(v, Gone)]
            return self._whole_across(variables, replica)

    def _elsewhere(self, variable: Any) -> tf.Tensor:
        """Returns another process' weight: a placeholder in graphs, its value where this process drives the others."""
        if not tf.executing_eagerly():
            return _placeholder_like(variable)
        # Without a driver, the read raises an error with the fix.
        return tf.constant(shards_of(variable).numpy()) if current_driver() else variable.values[0].read_value()

    def _local(self, variables: Sequence[ShardedVariable | Gone], replica: int) -> list[Any]:
        """Returns whole weights; all of their shards are in this process.

        Raises:
            NotAlikeError: one replica is traced for all, and does not read the weights in the graph of the step.
        """
        copies = self._steps.context.copies
        if copies is None or in_shapes_only() or tf.distribute.in_cross_replica_context():
            return self._join(variables, self._shards(variables, self._group_of(replica)), replica)
        if tf.compat.v1.get_default_graph() is not copies.graph:
            raise NotAlikeError("a function reads weights that are in shards")
        # Copies of the ops would read other shards. They are read, and sent, when all replicas are ready for them.
        with copies.made_for_all():
            ready = tf.no_op("ready")
            with tf.control_dependencies(None), tf.control_dependencies([ready]):
                shards = [self._shards(variables, group) for group in range(self._groups.num_local_groups)]
        return list(copies.make_each(lambda r: self._join(variables, shards[self._group_of(r)], r)))

    def _group_of(self, replica: int) -> int:
        return next(i for i in range(self._groups.num_local_groups) if replica in self._groups.replicas(i))

    def _shards(self, variables: Sequence[ShardedVariable | Gone], group: int) -> list[list[tf.Tensor]]:
        """Returns the flat shards of weights, each on the device that has it; none for a deleted weight."""
        shards: list[list[tf.Tensor]] = []
        with in_process("all_gather", "data"):
            for variable in variables:
                own = [] if isinstance(variable, Gone) else [variable.values[r] for r in self._groups.replicas(group)]
                shards.append([])
                for component in own:
                    with tf.device(component.device):
                        shards[-1].append(tf.reshape(_read(component), [-1]))
        return shards

    @staticmethod
    def _join(
        variables: Sequence[ShardedVariable | Gone], shards: Sequence[Sequence[tf.Tensor]], replica: int
    ) -> list[tf.Tensor | None]:
        """Returns whole weights on the device of a local replica; None for a deleted weight."""
        whole: list[tf.Tensor | None] = []
        with in_process("all_gather", "data"):
            for variable, own in zip(variables, shards, strict=True):
                if isinstance(variable, Gone):
                    whole.append(None)
                    continue
                with tf.device(variable.values[replica].device):
                    whole.append(tf.reshape(tf.concat(own, 0), variable.shape))
        return whole

    def _whole_across(self, variables: Sequence[ShardedVariable | Gone], replica: int) -> list[tf.Tensor]:
        part = next(self._layout.group_of(v) for v in variables if not isinstance(v, Gone))
        inside = self._processes[part].inside
        bucket = bucket_of(variables, self._groups.size)
        num_local = self._layout.num_local
        own = range(inside.rank * num_local, (inside.rank + 1) * num_local)
        device = self._layout.groups[part].devices[replica]
        shards = {}
        for each in bucket.slices:
            if each.owner in own:
                variable = variables[each.variable]
                if isinstance(variable, Gone):
                    shards[each] = tf.zeros([each.size], variable.dtype)
                    continue
                component = variable.values[each.owner - own.start]
                with tf.device(component.device):
                    shards[each] = _read(component)
        with tf.device(device), carrying(f"weights {listed([v.name for v in variables])}"):
            gathered = inside.gather(laid_out(bucket, own, shards, variables[0].dtype), equal_sizes=True)
            whole = {
                i: tf.reshape(tf.concat(flat, 0) if len(flat) > 1 else flat[0], variables[i].shape)
                for i, flat in taken_apart(bucket, gathered)
            }
            return [
                whole[i] if i in whole else tf.zeros(variable.shape, variable.dtype)
                for i, variable in enumerate(variables)
            ]


def _read(component: Any) -> tf.Tensor:
    """Reads a shard. ``tf.custom_gradient`` does not notice it: it would ask for the weight that is being gathered."""
    return tf.raw_ops.ReadVariableOp(resource=component.handle, dtype=component.dtype)


def _placeholder_like(variable: Any) -> tf.Tensor:
    """Returns a placeholder for a weight; like the weight, it is marked as the same on all replicas."""
    placeholder: tf.Tensor = mark(tf.compat.v1.placeholder(variable.dtype, variable.shape), Kind.SAME)
    return placeholder
