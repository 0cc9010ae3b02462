"""TensorFlow's ``StrategyExtended`` over replicas in several processes.

Each process has some replicas: initial values come from rank 0, reductions cross processes, and each process takes its
rows of a batch. Where the one replica of a job spans all of its processes, `ReplicatedExtended` is enough.

Its contract is tested in ``tests/strategies/processes``.
"""

from __future__ import annotations

from typing import Any, cast

import tensorflow as tf

from strategies._tf_internals import CheckpointInitialValue, is_mirrored
from strategies.batches import sharding
from strategies.collectives.agreement import Agreement
from strategies.collectives.descriptions import carrying
from strategies.control_plane import Member
from strategies.engine.replicated import ReplicatedExtended
from strategies.replica.parts import ReplicaParts
from strategies.steps.explained import explained
from strategies.steps.layout import local_values
from strategies.topology.sharding import ShardingGroups


def extended_over(
    strategy: Any, parts: ReplicaParts, member: Member | None, sharding: ShardingGroups | None
) -> ReplicatedExtended:
    """Returns TensorFlow's interface to the engine of a strategy, whose replicas are in one process or in several.

    Args:
        strategy: see :class:`ReplicatedExtended`, as for the other arguments.
        parts: its groups say which processes have replicas.
        member: this process in its job.
        sharding: the groups of replicas over which updates are sharded.
    """
    extended = MultiWorkerExtended if parts.groups.data else ReplicatedExtended
    return extended(strategy, parts, member=member, sharding=sharding)


class MultiWorkerExtended(ReplicatedExtended):
    """TensorFlow's interface to the engine, where other processes have replicas, too."""

    def _get_variable_creator_initial_value(self, replica_id: int, device: str, primary_var: Any, **kwargs: Any) -> Any:
        # If replicas span processes, no two processes may hold the same variables: no broadcast, all draw the same
        # numbers.
        if replica_id > 0 or self.engine.parts.spans_processes:
            return super()._get_variable_creator_initial_value(replica_id, device, primary_var, **kwargs)
        # Broadcast through the variable's own device only: another device may have no memory for it.
        joined = [each.process_group for each in self._layout.groups if each.devices[0] == device]
        process_group, initial_value = next(iter(joined), self.engine.process_group), kwargs["initial_value"]

        def from_rank_0() -> tf.Tensor:
            value = initial_value() if callable(initial_value) else initial_value
            if isinstance(value, CheckpointInitialValue):
                value = value.wrapped_value
            value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
            what = f"the initial value of {kwargs.get('name')} {value.shape}"
            with carrying(what), explained(self.engine.member, what):
                return process_group.broadcast(value)

        return from_rank_0

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if reduce_op == tf.distribute.ReduceOp.MEAN and is_mirrored(value):
            return value
        context = self.engine.steps.context
        return tf.nest.map_structure(
            lambda leaf: self.engine.reductions.across(reduce_op, [leaf], context.shares)[0], value
        )

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        local = [tf.convert_to_tensor(v) for v in local_values(value)]
        return self._layout.process_group.gather(tf.concat(local, axis) if len(local) > 1 else local[0], int(axis))

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        return self.engine.waits.clocked(self.distribute(dataset))

    def distribute(self, dataset: Any) -> Any:
        """Returns a dataset, distributed by its policy, without the stage that measures waiting times."""
        # With other processes, there is an agreement.
        agreement = cast(Agreement, self.engine.agreement)
        return sharding.distribute(dataset, agreement, self._layout.num_local)
