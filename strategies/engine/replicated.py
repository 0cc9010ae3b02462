"""Connects TensorFlow's ``StrategyExtended`` to the engine, over the devices of one process or of many.

A strategy chooses its local devices and their process groups; `ReplicatedExtended` does the rest.
"""

from __future__ import annotations

import contextlib
import functools
import secrets
from collections.abc import Callable, Iterable, Iterator, Sequence
from dataclasses import dataclass
from itertools import starmap
from typing import Any

import tensorflow as tf

from strategies._tf_internals import (
    CheckpointInitialValue,
    MirroredExtended,
    get_update_replica_id,
    is_mirrored,
    regroup,
    select_replica,
)
from strategies.batches import first_batch, inputs, sharding
from strategies.batches.agreement import Agreement
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.collectives.descriptions import carrying
from strategies.collectives.fixed_order import sum_in_order
from strategies.collectives.process_group import ProcessGroup
from strategies.control_plane import Member
from strategies.engine.accumulators import Accumulators
from strategies.engine.central import CentralStorage
from strategies.engine.cross_device import adapt, are_int32, bound_reduction, without_gradient
from strategies.engine.explained import explained
from strategies.engine.gradient_sync import Accumulation, GradientSync
from strategies.engine.layout import DataParallelGroup, ReplicaLayout, local_values
from strategies.engine.legacy_keras import refuse_caller, refuse_step
from strategies.engine.placed_variables import remote, without_value
from strategies.engine.reductions import FusedReduction, Reductions
from strategies.engine.same_batches import SameBatches
from strategies.engine.save_counter import SaveCounter
from strategies.engine.seeds import agree_on_random_state, agree_on_seed
from strategies.engine.sharded_updates import ShardedUpdates
from strategies.engine.sharded_weights import ShardedWeights
from strategies.engine.slice_slots import current_slice
from strategies.engine.step import Steps
from strategies.engine.updates import Updates
from strategies.engine.variables import (
    PartialSumVariable,
    ReplicaStateVariable,
    aware,
    holds_totals,
    reading_totals,
)
from strategies.engine.waiting import Waits
from strategies.replica import graph_lifetimes
from strategies.replica.owners import set_coordinates, set_owner
from strategies.replica.parts import ReplicaParts
from strategies.replica.row_exchange import RowExchange
from strategies.replica.splitting import SplitWeight
from strategies.replica.weight_identity import named_in_update
from strategies.replica.weight_slices import WeightSlice
from strategies.topology.devices import is_gpu
from strategies.topology.sharding import ShardingGroups


@dataclass(frozen=True)
class _Colocation:
    """A fake ``colocate_with`` target: TensorFlow reads only its devices."""

    _devices: tuple[str, ...]


class ReplicatedExtended(MirroredExtended):
    """TensorFlow's interface to the engine, with one or more local replicas of the model.

    Args:
        container_strategy: the strategy to which this object belongs.
        parts: the parts of each local replica, and the groups that join them to those of other processes.
        cross_device_ops: sums over the first device of each local replica; None for TensorFlow's own choice.
        member: this process in its job; None if it knows no other process.
        sharding: the groups of replicas over which updates are sharded; None if each replica updates all weights.
        parameter_device: full name of the device that alone holds and updates variables; None if each replica does.
    """

    _cross_device_ops: Any
    #: Counts the saves of this process, including those left to rank 0. Set only if there are other processes.
    save_counter: SaveCounter

    def __init__(
        self,
        container_strategy: Any,
        parts: ReplicaParts,
        cross_device_ops: Any,
        member: Member | None = None,
        sharding: ShardingGroups | None = None,
        parameter_device: str | None = None,
    ) -> None:
        #: This process in its job: its position, and its messages to and from other processes.
        self.member = member or Member(0, 1)
        #: The devices over which a replica is spread.
        self.parts = parts
        devices = [parts.part_devices(part) for part in parts.owned]
        joined: Sequence[ProcessGroup | None] = parts.groups.data or [None] * len(devices)
        #: All replicas of the job, and those of this process.
        self.layout = ReplicaLayout(tuple(starmap(DataParallelGroup, zip(devices, joined, strict=True))))
        # TensorFlow's own reductions are bound to their devices; `cross_device_ops` of a caller are not.
        self._reductions_by_devices: dict[tuple[str, ...], Any] | None = {} if cross_device_ops is None else None
        #: The seed generator of replicas' random draws without a seed; created at the first such draw.
        self.seed_generator: Any = None
        self.accumulators = Accumulators()
        graph_lifetimes.install(_is_ours)
        # TensorFlow's constructor reads numbers that depend on the devices.
        self._devices = devices[0]
        super().__init__(container_strategy, devices=devices[0], cross_device_ops=cross_device_ops)
        self.waits = Waits(self.layout.num_replicas)
        self._reductions = Reductions(self.layout, self._reduce_locally)
        self._gradient_sync = GradientSync(self.layout, self._reductions, self.waits)
        #: Compares batches between processes that hold parts of one replica; None if there are none.
        self.same_batches: SameBatches | None = None
        self._agreement: Agreement | None = None
        if self.process_group is not None:
            num_together = len(parts.owners) if parts.spans_processes else 1
            self._agreement = Agreement(self.process_group, num_together)
            self.same_batches = SameBatches(self.process_group, num_together) if num_together > 1 else None
        self._steps = Steps(container_strategy, self.layout, self.waits, self.same_batches)
        self._updates = Updates(parts, self.layout, self._gradient_sync, self._steps)
        #: Shards updates over the replicas; None if each replica updates all weights.
        self.sharded_updates: ShardedUpdates | None = None
        #: Exchanges rows between replicas that each hold some rows of a weight; None if each holds whole weights.
        self.row_exchange: RowExchange | None = None
        #: The groups of replicas over which updates are sharded; None if each replica updates all weights.
        self.sharding = sharding
        #: Creates sharded weights; None if each device holds whole weights.
        self.sharded_weights: ShardedWeights | None = None
        if sharding is not None:
            self.sharded_weights = ShardedWeights(self.layout, self._steps, sharding, parts)
            gathers = self.sharded_weights.gathers
            self.sharded_updates = ShardedUpdates(self.layout, self._reductions, self._steps, sharding, parts, gathers)
            sharding_group = parts.groups.sharding[0].inside if parts.groups.sharding else None
            self.row_exchange = RowExchange(sharding, self.layout.devices, sharding_group)
        #: Holds variables on the parameter device; None if each replica holds them.
        self.central: CentralStorage | None = None
        if parameter_device is not None and self.layout.devices != (parameter_device,):
            self.central = CentralStorage(parameter_device, self.layout, self._reductions, self._steps)
        if self.process_group is not None:
            with carrying("numbers of devices"):
                job = _check_alike(self.process_group, self.layout.num_local, len(devices))
            self.save_counter = SaveCounter(self.process_group.rank, job)
            agree_on_seed(self.process_group)
            if parts.spans_processes:
                agree_on_random_state(self.process_group)
        adapt(self._collective_ops)
        if self.member.has_store:
            # After TensorFlow, which installs its own handler of the signal.
            self.member.preemption.install_handler()

    @property
    def process_group(self) -> ProcessGroup | None:
        """The group of all processes of the job; None without other processes."""
        return self.parts.groups.job

    @property
    def owns_only_part(self) -> bool:
        """True if other processes hold variables of a model or its optimizer that this process does not hold."""
        sharded = self.sharded_updates
        return self.parts.spans_processes or (sharded is not None and sharded.process_group is not None)

    @property
    def computes_on_gpus(self) -> bool:
        """True if all local devices are GPUs: then batches are copied to them during earlier steps."""
        return all(is_gpu(device) for device in self.layout.devices)

    @property
    def _num_replicas_in_sync(self) -> int:
        return self.layout.num_replicas

    def _get_local_replica_id(self, replica_id_in_sync_group: int) -> int:
        return replica_id_in_sync_group - self.layout.first_replica

    def _get_replica_id_in_sync_group(self, replica_id: int) -> int:
        return self.layout.first_replica + replica_id

    # ---- steps

    def _call_for_each_replica(self, fn: Any, args: tuple[Any, ...], kwargs: dict[str, Any]) -> Any:
        refuse_step(fn)
        return self._steps.call(fn, args, kwargs)

    def note_replica_write(self, variable: ReplicaStateVariable, *, by_program: bool = False) -> None:
        """Records that a replica wrote ``variable`` alone in the running step."""
        self._steps.note_write(variable, by_program=by_program)

    def pending_write(self, variable: ReplicaStateVariable, replica: int) -> tuple[bool, Any] | None:
        """Returns (True if the program's own code wrote it, graph of the write) for a write that is not synchronized.

        Returns None if all replicas have the same value.
        """
        return self._steps.pending_write(variable, replica)

    def note_agreed(self, variable: ReplicaStateVariable, replica: int) -> None:
        """Records that a replica has the synchronized value of a variable."""
        self._steps.note_agreed(variable, replica)

    def update_replicas(
        self,
        gradients: Sequence[Any],
        update: Callable[[list[Any]], Any],
        targets: Sequence[Any] | None = None,
        accumulation: Accumulation | None = None,
        *,
        may_defer: bool = False,
    ) -> Any:
        """Synchronizes ``gradients`` and calls ``update`` with the result once per local replica.

        Call it in cross-replica context. Inside ``update`` every variable of the strategy means the component on that
        replica's device, and ops are placed there; ops that update a variable of another part of the replica are placed
        on the device of that part.

        Args:
            gradients: see :meth:`GradientSync.synchronized`, as for `targets` and `accumulation`.
            update: takes the gradients, in the same order.
            targets: for each gradient its variable.
            accumulation: given if the optimizer accumulates gradients over several steps.
            may_defer: True if nothing uses the result, or the updated variables, before metrics are read or
                :meth:`finish_update` is called. Then the update can be deferred until then, so that other sums across
                processes are fused with the gradients' reduction.

        Returns:
            The result of ``update`` for the first replica; None if the update is deferred.
        """
        if self.central is not None:
            return self.central.update(gradients, update, targets)
        update_of = functools.partial(self._updates.run, gradients, update, targets, accumulation)
        if may_defer and self.layout.process_group is not None and accumulation is None:
            self._updates.defer(update_of)
            return None
        self.finish_update()
        return update_of(())[0]

    def sum_gradients(self, gradients: Sequence[Any], targets: Sequence[Any]) -> list[Any]:
        """Returns the sums of gradients over all replicas, on each local replica. Call it in cross-replica context.

        Args:
            gradients: per-replica tensors or ``IndexedSlices``.
            targets: for each gradient the variable, or the per-replica tensor, with respect to which it was taken.
        """
        self.finish_update()
        # A tensor is on the devices of its gradient.
        where = [
            each if isinstance(each, tf.distribute.DistributedValues) else g
            for g, each in zip(gradients, targets, strict=True)
        ]
        return self._updates.synchronized(gradients, where)[0]

    def finish_update(self, fused: Sequence[FusedReduction] = ()) -> list[tf.Tensor] | None:
        """Runs the deferred update, if there is one; see :meth:`Updates.finish`. Call it in cross-replica context."""
        return self._updates.finish(fused)

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
        reference = kwargs.get("colocate_with")
        made = self._make_variable(next_creator, kwargs)
        if self.parts.spans_processes and isinstance(made, tf.distribute.DistributedValues):
            set_coordinates(made, self.parts, reference)
        return made

    def _make_variable(self, next_creator: Callable[..., Any], kwargs: dict[str, Any]) -> Any:
        if self.accumulators.makes_flag:
            return next_creator(**kwargs)
        if (owner := current_slice()) is not None:
            return self._create_slot(next_creator, owner, kwargs)
        if self.sharded_weights is not None and self.sharded_weights.should_shard(kwargs):
            whole = self._get_variable_creator_initial_value(0, self.layout.devices[0], None, **kwargs)
            return self.sharded_weights.create(self._container_strategy(), next_creator, whole, kwargs)
        if self.central is not None:
            made = self.central.create(self._container_strategy(), next_creator, kwargs)
            if made is not None:
                return made
        if not self.parts.spans_processes:
            return self._create_local(next_creator, self.parts.local_part(), kwargs)
        part = self.parts.local_part()
        component = without_value(self.parts, part, kwargs, may_defer=not self.accumulators.makes_accumulators)
        if component is None:
            return self._create_local(next_creator, part, kwargs)
        return ReplicaStateVariable(self._container_strategy(), [component], component.aggregation)

    def _create_slot(self, next_creator: Callable[..., Any], owner: WeightSlice, kwargs: dict[str, Any]) -> Any:
        """Creates a slot of a weight slice, on the device of the slice's owner in each group only."""
        if owner.is_owned:
            components = []
            for replica in owner.replicas:
                with tf.device(owner.on_replica(replica).device):
                    components.append(next_creator(**kwargs))
        else:
            components = [remote(owner.rank, kwargs)]
        made = ReplicaStateVariable(self._container_strategy(), components, components[0].aggregation)
        if self.sharded_updates is not None and self.sharded_updates.process_group is not None:
            set_owner(made, owner.rank)
        return made

    def _create_local(self, next_creator: Callable[..., Any], part: int | None, kwargs: dict[str, Any]) -> Any:
        if part is not None and part != self.parts.owned[0] and kwargs.get("colocate_with") is None:
            kwargs["colocate_with"] = _Colocation(self.parts.part_devices(part))
        create = functools.partial(super()._create_variable, next_creator)
        accumulator = self.accumulators.create(create, kwargs)
        return aware(create(**kwargs)) if accumulator is None else accumulator

    def _get_variable_creator_initial_value(self, replica_id: int, device: str, primary_var: Any, **kwargs: Any) -> Any:
        # If replicas span processes, no two processes may hold the same variables: no broadcast, all draw the same
        # numbers.
        if self.process_group is None or replica_id > 0 or self.parts.spans_processes:
            return super()._get_variable_creator_initial_value(replica_id, device, primary_var, **kwargs)
        # Broadcast through the variable's own device only: another device may have no memory for it.
        joined = [each.process_group for each in self.layout.groups if each.devices[0] == device and each.process_group]
        process_group, initial_value = next(iter(joined), self.process_group), kwargs["initial_value"]

        def from_rank_0() -> tf.Tensor:
            value = initial_value() if callable(initial_value) else initial_value
            if isinstance(value, CheckpointInitialValue):
                value = value.wrapped_value
            value = tf.convert_to_tensor(value, dtype=kwargs.get("dtype"))
            what = f"the initial value of {kwargs.get('name')} {value.shape}"
            with carrying(what), explained(self.member, what):
                return process_group.broadcast(value)

        return from_rank_0

    # ---- reductions

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if self.layout.process_group is None:
            return super()._reduce_to(reduce_op, value, destinations, options)
        if reduce_op == tf.distribute.ReduceOp.MEAN and is_mirrored(value):
            return value
        context = self._steps.context
        return tf.nest.map_structure(lambda leaf: self._reductions.across(reduce_op, [leaf], context.shares)[0], value)

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        refuse_caller()
        # Called for ReplicaContext.all_reduce, as in BatchNormalization(synchronized=True).
        values = [without_gradient(value) for value, _ in value_destination_pairs]
        where = [where for _, where in value_destination_pairs]
        local_shares = self._steps.context.shares
        if reduce_op == tf.distribute.ReduceOp.SUM:
            values = self._reductions.counted(self.layout.per_replica(values), local_shares)
        totals = self._reductions.to_groups(reduce_op, values, where, local_shares, options=options)
        for total in totals:
            # The reduction is the same on all replicas, whatever the kind of its terms.
            for value in local_values(total):
                mark(value, Kind.SAME)
        return totals

    def _reduce_locally(
        self, reduce_op: Any, pairs: list[tuple[Any, Any]], devices: tuple[str, ...], options: Any
    ) -> list[Any]:
        """Reduces over the devices of one part of the replicas, by TensorFlow's reduction for these devices."""
        is_other_part = any(group.devices == devices for group in self.layout.groups[1:])
        if self._reductions_by_devices is None or not is_other_part or are_int32(pairs):
            return list(super()._batch_reduce_to(reduce_op, pairs, options))
        if devices not in self._reductions_by_devices:
            self._reductions_by_devices[devices] = bound_reduction(
                devices, self._communication_options, self._collective_keys
            )
        options = self._communication_options.merge(options)
        return list(self._reductions_by_devices[devices].batch_reduce(reduce_op, pairs, options=options))

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        process_group = self.layout.process_group
        if process_group is None:
            return super()._gather_to_implementation(value, destinations, axis, options)
        local = [tf.convert_to_tensor(v) for v in local_values(value)]
        return process_group.gather(tf.concat(local, axis) if len(local) > 1 else local[0], int(axis))

    @contextlib.contextmanager
    def metric_totals(self, variables: Iterable[Any]) -> Iterator[None]:
        """Context manager: reads of the metric ``variables`` return sums over all replicas, reduced in one message.

        Where stages are in several processes, the last one has the outputs: its sums are sent to all. Accumulated
        gradients stay each process' own.
        """
        if holds_totals() or (self.layout.process_group is None and not self.parts.crosses("pipe")):
            yield
            return
        chosen = [v for v in variables if v.aggregation == tf.VariableAggregation.SUM]
        own = [FusedReduction.from_variable(v, self.layout.group_of(v)) for v in chosen]
        totals = self.finish_update(own)
        if totals is None and self.layout.process_group is None:
            totals = [sum_in_order(reduction.values) for reduction in own]
        elif totals is None:
            with carrying("metrics"):
                totals = self._reductions.across(tf.distribute.ReduceOp.SUM, [], fused=own)
        shown = [i for i, v in enumerate(chosen) if not isinstance(v, PartialSumVariable)]
        for i, total in zip(shown, self.parts.broadcast_last_stage([totals[i] for i in shown]), strict=True):
            totals[i] = total
        with reading_totals(zip(chosen, totals, strict=True)):
            yield

    # ---- input

    def _experimental_distribute_dataset(self, dataset: Any, options: Any) -> Any:
        if self._agreement is not None and self.layout.process_group is not None:
            return self._clocked(sharding.distribute(dataset, self._agreement, self.layout.num_local))
        if options is not None or not isinstance(dataset, tf.data.Dataset):
            return super()._experimental_distribute_dataset(dataset, options)
        shared = inputs.distribute(dataset, self.layout.num_replicas)
        if self._agreement is not None:
            shared = sharding.ending_together(shared, self._agreement, "all processes read all of it, for one replica")
        return self._clocked(shared)

    def _distribute_datasets_from_function(self, dataset_fn: Any, options: Any) -> Any:
        if self._agreement is None or self.layout.process_group is None:
            return super()._distribute_datasets_from_function(dataset_fn, options)
        dataset = dataset_fn(self._make_input_context())
        return self._clocked(sharding.distribute_own(dataset, self._agreement, self.layout.num_local))

    def compare_batch(self, batch: Any) -> None:
        """Raises an error on all processes if they have different global batches. All processes call it.

        Args:
            batch: a nest of tensors or arrays; other values are not compared.
        """
        if self._agreement is not None and self.layout.process_group is not None:
            first_batch.compare(batch, self._agreement)

    def _clocked(self, dataset: Any) -> Any:
        return dataset.apply(self.waits.clocked) if hasattr(dataset, "apply") else dataset

    def _make_input_context(self) -> tf.distribute.InputContext:
        position = 0 if self.layout.process_group is None else self.layout.process_group.rank
        return tf.distribute.InputContext(self.layout.num_processes, position, self.layout.num_replicas)

    def _experimental_distribute_values_from_function(self, value_fn: Any) -> Any:
        contexts = [
            tf.distribute.experimental.ValueContext(self.layout.first_replica + r, self.layout.num_replicas)
            for r in range(self.layout.num_local)
        ]
        return regroup(tuple(value_fn(context) for context in contexts), always_wrap=True)

    # ---- files

    @property
    def should_checkpoint(self) -> bool:
        """True if this process writes checkpoints: only rank 0 does."""
        return self.process_group is None or self.process_group.rank == 0

    @property
    def should_save_summary(self) -> bool:
        """True if this process writes summaries: only rank 0 does."""
        return self.should_checkpoint


def _is_ours() -> bool:
    """Returns True if the caller is under a strategy of this package."""
    return isinstance(tf.distribute.get_strategy().extended, ReplicatedExtended)


def _check_alike(process_group: ProcessGroup, num_replicas: int, num_parts: int) -> int:
    """Raises an error on all processes if their numbers of devices differ: they would split batches differently.

    Returns:
        A random number drawn by rank 0, which identifies this job.
    """
    mine = tf.constant([[num_replicas, num_parts, secrets.randbelow(2**31)]], tf.int32)
    gathered = process_group.gather(mine).numpy().tolist()
    counts = [tuple(each[:2]) for each in gathered]
    if len(set(counts)) > 1:
        raise ValueError(
            "All processes must have the same number of devices. Hide some of them (CUDA_VISIBLE_DEVICES), or start "
            "other numbers of processes per host. Received, by rank: "
            f"{[replicas * parts for replicas, parts in counts]} devices."
        )
    return int(gathered[0][2])
