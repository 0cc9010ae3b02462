"""Updates that are sharded over the data axis: each device updates its part of all weights and holds its slots only.

Every device computes with whole weights. A reduce-scatter gives it the gradient sums of its own part, and it updates
that part of the weights; an all-gather then gives it the other parts. This moves as many bytes as the all-reduce that
it replaces, and on each of n devices the optimizer's slots take 1/n of the memory.

Updates can also be sharded within groups of devices, each of which has all parts. Then the sums of a part are also
reduced between the groups, which exchange nothing else.

Source: stage 1 of ZeRO (Rajbhandari et al., arXiv:1910.02054); groups: MiCS (Zhang et al., arXiv:2205.00119).
"""

from __future__ import annotations

import dataclasses
import functools
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import UninitializedVariable, UpdateContext
from strategies.buckets import Slice, slice_buckets
from strategies.collectives.descriptions import carrying, listed
from strategies.collectives.loopback import LOOPBACK
from strategies.collectives.process_group import ProcessGroup
from strategies.replica.owners import coordinates_of, first_owner, is_owned
from strategies.replica.parts import ReplicaParts
from strategies.replica.weight_slices import WeightSlice, beside_weights
from strategies.sharding.gathers import WeightGathers
from strategies.sharding.partition import Partition, PartitionedBucket, laid_out, taken_apart
from strategies.sharding.reduce_scatter import ReduceScatter
from strategies.sharding.row_gradients import RowShardedGradients
from strategies.sharding.units import bucket_of
from strategies.sharding.variables import ShardedVariable, own_range
from strategies.steps.layout import ReplicaLayout, local_values
from strategies.steps.reductions import Reductions
from strategies.steps.step import Steps
from strategies.topology.sharding import ShardingGroups


class ShardedUpdates:
    """Partitions weights over the replicas' devices, and updates the slices that this process owns.

    Args:
        layout: the replicas.
        reductions: the reductions over these replicas, for sparse gradients.
        steps: the steps of these replicas.
        groups: the groups of replicas over which updates are sharded.
        parts: the parts of a replica.
        weights: gathers sharded weights.
    """

    def __init__(
        self,
        layout: ReplicaLayout,
        reductions: Reductions,
        steps: Steps,
        groups: ShardingGroups,
        parts: ReplicaParts,
        weights: WeightGathers,
    ) -> None:
        self._layout = layout
        self._steps = steps
        self._groups = groups
        self._parts = parts
        #: Gathers sharded weights.
        self.weights = weights
        # One for each part that this process owns; empty if each group is inside one process.
        self._processes = parts.groups.sharding
        row_sharded = RowShardedGradients(layout, self._processes, self._part_of)
        self._reduce_scatter = ReduceScatter(layout, reductions, steps, self._processes, row_sharded, weights)

    @property
    def process_group(self) -> ProcessGroup:
        """The group of processes over which updates are sharded."""
        return self._processes[0].inside if self._processes else LOOPBACK

    @property
    def spans_processes(self) -> bool:
        """True if other processes update some of the slices."""
        return self.process_group.num_processes > 1

    @property
    def local_groups(self) -> range:
        """The local groups of replicas; in a group's :class:`UpdateContext`, a slice is the group's own component."""
        return range(self._groups.num_local_groups)

    def partition(self, variables: Sequence[Any], *, whole: bool) -> Partition:
        """Partitions variables into slices, each with an owner.

        Args:
            variables: Keras variables, in the order in which they were created.
            whole: True if each variable has one owner.
        """
        # All processes that hold weights at the same coordinates hold all of these, and partition them equally.
        by_coordinates: dict[Any, list[int]] = {}
        for i, variable in enumerate(variables):
            coordinates = frozenset(coordinates_of(variable).items())
            by_coordinates.setdefault((self._part_of(variable), coordinates), []).append(i)
        buckets: list[PartitionedBucket] = []
        bucket_bytes = self.process_group.bucket_bytes
        slices: dict[Slice, WeightSlice] = {}
        for (group, _), members in by_coordinates.items():
            own = members if whole else [i for i in members if not _is_sharded(variables[i])]
            if len(own) < len(members):
                units: dict[int, list[int]] = {}
                for i in members:
                    if _is_sharded(variables[i]):
                        units.setdefault(id(variables[i].value.unit), []).append(i)
                for unit in units.values():
                    bucket = bucket_of([variables[i].value for i in unit], self._groups.size, unit)
                    if group is not None:
                        buckets.append(PartitionedBucket(group, bucket))
                    slices |= {plan: self._slice(variables[plan.variable], plan) for plan in bucket.slices}
            shapes = [tuple(variables[i].shape) for i in own]
            dtypes = [tf.as_dtype(variables[i].dtype) for i in own]
            named = [(dtype.name, dtype.size) for dtype in dtypes]
            for bucket in slice_buckets(shapes, named, self._groups.size, bucket_bytes, whole=whole):
                plans = [dataclasses.replace(plan, variable=own[plan.variable]) for plan in bucket.slices]
                if group is not None:
                    buckets.append(PartitionedBucket(group, dataclasses.replace(bucket, slices=tuple(plans))))
                slices |= {plan: self._slice(variables[plan.variable], plan) for plan in plans}
        partition = Partition(variables, buckets, slices)
        with tf.init_scope():
            self._gather_on_owners(partition)
        return partition

    def _gather_on_owners(self, partition: Partition) -> None:
        """Gathers each sharded weight onto the owner of its whole copy."""
        wholes = [each for each in partition.slices if each.is_whole_on_owner]
        for each in wholes:
            if not is_owned(each.variable):
                continue
            [whole] = self.weights.all_gather([each.variable.value], 0)
            for group in self.local_groups if each.is_owned else ():
                with UpdateContext(group):
                    each.assign(whole)

    def _slice(self, variable: Any, plan: Slice) -> WeightSlice:
        process, replicas = self._groups.owner(plan.owner)
        is_own = process == self.process_group.rank
        # The processes of one replica have consecutive ranks.
        rank = process * len(self._parts.owners) + first_owner(self._parts, coordinates_of(variable))
        owned = replicas if is_own and is_owned(variable) else ()
        if not _is_sharded(variable):
            return WeightSlice(variable, plan.begin, plan.end, rank, owned)
        if (plan.begin, plan.end) == variable.value.bounds[plan.owner]:
            return WeightSlice(variable, plan.begin, plan.end, rank, owned, is_shard=True)
        wholes = [self._create_whole(variable.value, replica) for replica in owned]
        return WeightSlice(variable, plan.begin, plan.end, rank, owned, whole_on_owner=wholes)

    def _create_whole(self, variable: ShardedVariable, replica: int) -> tf.Variable:
        """Returns an uninitialized variable that holds a whole weight while its owner updates it."""
        with tf.init_scope(), tf.device(variable.values[replica].device):
            return UninitializedVariable(
                trainable=False, shape=variable.shape, dtype=variable.dtype, name=f"{variable.name.split(':')[0]}_whole"
            )

    def _part_of(self, variable: Any) -> int | None:
        """Returns the number of the owned part of a replica that holds a variable; None if other processes hold it."""
        if not self._parts.spans_processes:
            return self._layout.group_of(variable.value)
        part = self._parts.local_part(coordinates_of(variable))
        return None if part is None else self._parts.owned.index(part)

    # ---- one update

    def run(
        self,
        partition: Partition,
        gradients: Sequence[Any],
        update: Callable[[Sequence[Any], Sequence[WeightSlice]], Any],
        *,
        gathers_at: tf.Tensor | None = None,
        counter: Any = None,
    ) -> Any:
        """Updates all weights. Call it in cross-replica context.

        Args:
            partition: the weights.
            gradients: for each variable a per-replica tensor or ``IndexedSlices`` of the variable's shape,
                a plain one that all replicas share and that is the sum already, or None.
            update: takes the sums of the slices' gradients, None for slices that other processes own, and all slices.
                Called once for each local group.
            gathers_at: bool scalar, true if the weights change in this step; None if they always do.
            counter: a Keras variable that changes unless the update is skipped; None if it is never skipped.

        Returns:
            The result of ``update`` for the first group.
        """
        names = [str(variable.name) for variable in partition.variables]
        with carrying(f"gradients of {listed(names)}"):
            sums = self._reduce_scatter(partition, gradients)
        self._gather_on_owners(partition)
        updated = [gradient is not None for gradient in gradients]
        constrained = [v for v, is_new in zip(partition.variables, updated, strict=True) if is_new and v.constraint]
        before = None
        if constrained and counter is not None:
            before = tf.identity(local_values(counter.value)[0].read_value())
        results = []
        slices = partition.slices_of(updated)
        # After an update that always happens, all weights are set from their slices.
        with beside_weights(slices if gathers_at is None else []):
            for group in self.local_groups:
                with tf.device(self._layout.devices[group]), UpdateContext(group), tf.name_scope("update"):
                    own = list(map(_on_device, partition.slices, sums)) if group else sums
                    # As in Keras, variables without a gradient, such as those of frozen layers, are skipped.
                    pairs = zip(own, partition.positions, strict=True)
                    results.append(update([g for g, i in pairs if updated[i]], slices))
            if gathers_at is None:
                self.gather(partition, updated)
        if gathers_at is not None:
            tf.cond(gathers_at, functools.partial(self.gather, partition, updated), lambda: None)
        if before is None:
            self._constrain(constrained)
        else:
            # An overflow must leave the weights unchanged, and a constraint might change them.
            is_done = tf.not_equal(local_values(counter.value)[0].read_value(), before)
            tf.cond(is_done, functools.partial(self._constrain, constrained), lambda: None)
        self.weights.reshard()
        return results[0]

    # ---- all-gather of the new weights

    def gather(self, partition: Partition, updated: Sequence[bool] | None = None) -> None:
        """Copies the owners' values of the weights to all replicas (an all-gather). All processes call it.

        Args:
            partition: the weights.
            updated: for each weight True if it has changed; None if all have.
        """
        names = [str(variable.name) for variable in partition.variables]
        changed = [True] * len(names) if updated is None else list(updated)
        with carrying(f"new values of {listed(names)}"):
            if self.spans_processes:
                self._gather_across(partition, changed)
            else:
                self._copy_locally(partition, changed)

    def _constrain(self, variables: Sequence[Any]) -> None:
        """Applies the constraints of whole weights, as optimizers do after each step."""
        for variable in variables:
            if _is_sharded(variable):
                [whole] = self.weights.all_gather([variable.value], 0)
                variable.value.assign(variable.constraint(whole), read_value=False)
        for r in range(self._layout.num_local):
            for variable in variables:
                if _is_sharded(variable):
                    continue
                with tf.device(local_values(variable.value)[r].device), UpdateContext(r):
                    variable.assign(variable.constraint(variable))

    def _copy_locally(self, partition: Partition, changed: Sequence[bool]) -> None:
        pairs = zip(partition.slices, partition.positions, strict=True)
        for position, own in itertools.groupby(pairs, key=lambda pair: pair[1]):
            if not changed[position]:
                continue
            slices, variable = [each for each, _ in own], partition.variables[position].value
            if slices[0].is_shard:
                continue
            for group in self.local_groups:
                with UpdateContext(group):
                    values = [tf.reshape(each.read(), [-1]) for each in slices]
                    only = slices[0].replica if slices[0].is_whole and not slices[0].is_whole_on_owner else None
                for replica in self._groups.replicas(group):
                    if replica != only:
                        _set(variable, replica, values)

    def _gather_across(self, partition: Partition, changed: Sequence[bool]) -> None:
        num_local = self._layout.num_local
        for number, bucket in partition.buckets:
            group = self._processes[number].inside
            if not any(changed[each.variable] and not partition.slice_of(each).is_shard for each in bucket.slices):
                continue
            own = range(group.rank * num_local, (group.rank + 1) * num_local)
            with tf.device(self._layout.groups[number].devices[0]):
                new = {s: partition.slice_of(s).read() for s in bucket.slices if s.owner in own}
                gathered = group.gather(laid_out(bucket, own, new, partition.dtype_of(bucket)), equal_sizes=True)
            for i, flat in taken_apart(bucket, gathered):
                for replica in range(num_local):
                    _set(partition.variables[i].value, replica, flat)


def _is_sharded(variable: Any) -> bool:
    """Returns True if each device holds a shard of a Keras variable."""
    return isinstance(getattr(variable, "value", None), ShardedVariable)


def _set(variable: Any, replica: int, parts: Sequence[tf.Tensor]) -> None:
    """Sets a replica's component of a variable from the whole value, given as consecutive flat pieces."""
    component = local_values(variable)[replica]
    with tf.device(component.device):
        whole = tf.concat(parts, 0) if len(parts) > 1 else parts[0]
        if isinstance(variable, ShardedVariable):
            whole = own_range(whole, *variable.bounds[variable.owners[replica]], component.shape)
        component.assign(tf.reshape(whole, component.shape), read_value=False)


def _on_device(each: WeightSlice, total: Any) -> Any:
    """Copies the sum of a slice's gradient to the device of the slice's owner in the current group."""
    if total is None:
        return None
    with tf.device(each.device):
        return tf.nest.map_structure(tf.identity, total, expand_composites=True)
