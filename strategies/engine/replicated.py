"""Connects TensorFlow's ``StrategyExtended`` to the engine.

A strategy chooses its local devices and their process groups; `ReplicatedExtended` does the rest. For replicas in other
processes it has a subclass, in ``multi_worker``.
"""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from strategies._tf_internals import (
    MirroredExtended,
    get_update_replica_id,
    regroup,
    select_replica,
)
from strategies.batches import inputs, sharding
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.control_plane import Member
from strategies.engine.cross_device import adapt, bound_reduction, without_gradient
from strategies.engine.engine import Engine
from strategies.engine.legacy_keras import refuse_caller, refuse_step
from strategies.engine.variable_makers import VariableMakers
from strategies.replica import graph_lifetimes
from strategies.replica.parts import ReplicaParts
from strategies.replica.splitting import SplitWeight
from strategies.replica.weight_identity import named_in_update
from strategies.replica.weight_slices import WeightSlice
from strategies.steps.layout import local_values
from strategies.steps.reductions import SUM, is_int32
from strategies.steps.sums_in_turn import default_reduction
from strategies.topology.sharding import ShardingGroups


class ReplicatedExtended(MirroredExtended):
    """TensorFlow's interface to the engine. All replicas of the model are local; there are one or more.

    A replica may span processes, each of which then has a part of every replica.

    Args:
        container_strategy: the strategy to which this object belongs.
        parts: the parts of each local replica, and the groups that join them to those of other processes.
        cross_device_ops: sums over the first device of each local replica; None for sums in turn between CPUs, and for
            TensorFlow's own choice between GPUs.
        member: this process in its job; None if it knows no other process.
        sharding: the groups of replicas over which updates are sharded; None if each replica updates all weights.
        parameter_device: full name of the device that alone holds and updates variables; None if each replica does.
    """

    _cross_device_ops: Any

    def __init__(
        self,
        container_strategy: Any,
        parts: ReplicaParts,
        cross_device_ops: Any = None,
        member: Member | None = None,
        sharding: ShardingGroups | None = None,
        parameter_device: str | None = None,
    ) -> None:
        #: The engine: what hooks into Keras, saving, and layers see of the strategy.
        self.engine = Engine(container_strategy, parts, self._reduce_locally, member, sharding, parameter_device)
        self._layout = self.engine.layout
        reduction = cross_device_ops or default_reduction(self._layout.devices)
        # TensorFlow's own reductions are bound to their devices; others are not.
        self._reductions_by_devices: dict[tuple[str, ...], Any] | None = {} if reduction is None else None
        graph_lifetimes.install(_is_ours)
        # TensorFlow's constructor reads numbers that depend on the devices.
        self._devices = self._layout.devices
        super().__init__(container_strategy, devices=self._layout.devices, cross_device_ops=reduction)
        self._makers = VariableMakers(
            container_strategy,
            self.engine,
            super()._create_variable,
            lambda kwargs: self._get_variable_creator_initial_value(0, self._layout.devices[0], None, **kwargs),
        )
        self.engine.agree()
        adapt(self._collective_ops)
        if self.engine.member.store is not None:
            # After TensorFlow, which installs its own handler of the signal.
            self.engine.member.preemption.install_handler()

    @property
    def _num_replicas_in_sync(self) -> int:
        return self._layout.num_replicas

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self._layout.first_replica

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self._layout.first_replica + replica_id

    # ---- steps

    def _call_for_each_replica(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        refuse_step(fn)
        return self.engine.steps.call(fn, args, kwargs)

    def _use_merge_call(self) -> bool:
        # While one replica's components are updated, no other replica runs to merge with: Keras then calls directly.
        return get_update_replica_id() is None and bool(super()._use_merge_call())

    def _update(self, var: Any, fn: Callable[..., Any], args: Any, kwargs: Any, group: bool) -> Any:
        r = get_update_replica_id()
        if isinstance(var, WeightSlice):
            with tf.device(var.device), named_in_update(var, var):
                return fn(var, *select_replica(r or 0, args), **select_replica(r or 0, kwargs))
        if isinstance(var, SplitWeight):
            with named_in_update(var, var):
                return fn(var, *args, **kwargs) if r is None else fn(var, *select_replica(r, args), **kwargs)
        if r is None:
            return super()._update(var, fn, args, kwargs, group)
        component = var._get_replica(r)
        with tf.device(component.device), named_in_update(var, component):
            return fn(component, *select_replica(r, args), **select_replica(r, kwargs))

    # ---- variables

    @contextlib.contextmanager
    def colocate_vars_with(self, colocate_with_variable: Any) -> Iterator[None]:
        """Enters TensorFlow's context, in the strategy's scope if none is entered, as in a loop that creates slots."""
        scope = contextlib.nullcontext() if tf.distribute.has_strategy() else self._container_strategy().scope()
        with scope, super().colocate_vars_with(colocate_with_variable):
            yield

    def _create_variable(self, next_creator: Callable[..., Any], **kwargs: Any) -> Any:
        refuse_caller()
        return self._makers.make(next_creator, kwargs)

    # ---- reductions

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        refuse_caller()
        # Called for ReplicaContext.all_reduce, as in BatchNormalization(synchronized=True).
        values = [without_gradient(value) for value, _ in value_destination_pairs]
        where = [where for _, where in value_destination_pairs]
        local_shares = self.engine.steps.context.shares
        if reduce_op == SUM:
            values = self._layout.per_replica(values)
        totals = self.engine.reductions.to_groups(reduce_op, values, where, local_shares, options=options)
        for total in totals:
            # The reduction is the same on all replicas, whatever the kind of its terms.
            for value in local_values(total):
                mark(value, Kind.SAME)
        return totals

    def _reduce_locally(
        self, reduce_op: Any, pairs: list[tuple[Any, Any]], devices: tuple[str, ...], options: Any
    ) -> list[Any]:
        """Reduces over the devices of one part of the replicas, by TensorFlow's reduction for these devices."""
        is_other_part = any(group.devices == devices for group in self._layout.groups[1:])
        if self._reductions_by_devices is None or not is_other_part or any(is_int32(value) for value, _ in pairs):
            return list(super()._batch_reduce_to(reduce_op, pairs, options))
        if devices not in self._reductions_by_devices:
            self._reductions_by_devices[devices] = bound_reduction(
                devices, self._communication_options, self._collective_keys
            )
        options = self._communication_options.merge(options)
        return list(self._reductions_by_devices[devices].batch_reduce(reduce_op, pairs, options=options))

    # ---- input

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if options is not None or not isinstance(dataset, tf.data.Dataset):
            return super()._experimental_distribute_dataset(dataset, options)
        return self.engine.waits.clocked(self.distribute(dataset))

    def distribute(self, dataset: tf.data.Dataset) -> Any:
        """Returns a dataset of global batches, distributed, without the stage that measures waiting times."""
        if self.engine.agreement is None:
            return inputs.distribute(dataset, self._layout.num_replicas)
        return sharding.distribute_whole(dataset, self.engine.agreement, self._layout.num_replicas)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        if self.engine.agreement is None:
            return super()._distribute_datasets_from_function(dataset_fn, options)
        dataset = dataset_fn(self._make_input_context())
        if self._layout.num_replicas == 1:
            distributed = sharding.distribute_whole(dataset, self.engine.agreement, 1)
        else:
            distributed = sharding.distribute_own(dataset, self.engine.agreement, self._layout.num_local)
        return self.engine.waits.clocked(distributed)

    def _make_input_context(self) -> tf.distribute.InputContext:
        position = self._layout.process_group.rank
        return tf.distribute.InputContext(self._layout.num_processes, position, self._layout.num_replicas)

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        contexts = [
            tf.distribute.experimental.ValueContext(self._layout.first_replica + r, self._layout.num_replicas)
            for r in range(self._layout.num_local)
        ]
        return regroup(tuple(value_fn(context) for context in contexts), always_wrap=True)

    # ---- files

    @property
    def should_checkpoint(self) -> bool:
        """True if this process writes checkpoints: only rank 0 does."""
        return self.engine.should_checkpoint

    @property
    def should_save_summary(self) -> bool:
        """True if this process writes summaries: only rank 0 does."""
        return self.should_checkpoint


def _is_ours() -> bool:
    """Returns True if the caller is under a strategy of this package."""
    return isinstance(tf.distribute.get_strategy().extended, ReplicatedExtended)
