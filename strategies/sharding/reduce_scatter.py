"""Reduces gradients to the owners of slices: a reduce-scatter, in one process or across processes."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica, select_replica
from strategies.batches.shares import Share
from strategies.collectives.fixed_order import sum_in_order
from strategies.collectives.process_groups import ShardingProcessGroups
from strategies.op_names.scopes import in_process
from strategies.replica.rounding import rounded, rounding_of
from strategies.replica.weight_slices import WeightSlice
from strategies.sharding.gathers import WeightGathers
from strategies.sharding.partition import Partition, PartitionedBucket, all_laid_out
from strategies.sharding.row_gradients import RowShardedGradients
from strategies.sharding.variables import is_row_sharded
from strategies.steps.layout import ReplicaLayout, local_values
from strategies.steps.maxima import with_maxima
from strategies.steps.reductions import SUM, Reductions
from strategies.steps.step import Steps


class ReduceScatter:
    """Sums gradients over the replicas, each slice's on the device of its owner.

    Args:
        layout: the replicas.
        reductions: the reductions over these replicas, for sparse gradients.
        steps: the steps of these replicas.
        processes: for each owned part, the process groups over which updates are sharded; empty if each group of
            replicas is inside one process.
        row_sharded: sums the gradients of tables whose rows are sharded.
        gathers: gathers sharded weights, again for the backward pass.
    """

    def __init__(
        self,
        layout: ReplicaLayout,
        reductions: Reductions,
        steps: Steps,
        processes: Sequence[ShardingProcessGroups],
        row_sharded: RowShardedGradients,
        gathers: WeightGathers,
    ) -> None:
        self._layout = layout
        self._reductions = reductions
        self._steps = steps
        self._processes = processes
        self._row_sharded = row_sharded
        self._gathers = gathers

    def __call__(self, partition: Partition, gradients: Sequence[Any]) -> list[Any]:
        """Returns for each slice the sum of its gradient, on the slice's device; None for slices of other processes."""
        values = with_maxima(
            self._layout,
            self._layout.per_replica(gradients),
            [variable.value for variable in partition.variables],
            self._steps.context.shares,
        )
        rows = self._row_sharded.sums(partition, values)
        others = [None if is_row_sharded(v) else value for v, value in zip(partition.variables, values, strict=True)]
        found = self._sums_of_rows(partition, others)
        dtypes = [rounding_of(local_values(value)[0]) for value in values]
        return [
            rows.get(id(each), rounded(value, dtypes[position]))
            for each, value, position in zip(partition.slices, found, partition.positions, strict=True)
        ]

    def _sums_of_rows(self, partition: Partition, values: Sequence[Any]) -> list[Any]:
        """Like :meth:`__call__`, for weights that are not row-sharded: each replica's value is of its own rows."""
        shares = self._steps.context.shares
        values = list(values)
        sparse = [i for i, value in enumerate(values) if isinstance(local_values(value)[0], tf.IndexedSlices)]
        totals = self._totals(partition, {i: values[i] for i in sparse}, shares)
        if not self._processes:
            if self._layout.num_processes > 1:
                # Each process has all slices, and so needs all of the gradients.
                totals |= self._totals(partition, {i: v for i, v in enumerate(values) if i not in totals}, shares)
            else:
                values = self._reductions.terms([None if i in totals else v for i, v in enumerate(values)], shares)
            self._gathers.unshard_for_backward()
            return [
                self._local_sum(each, position, values, totals)
                for each, position in zip(partition.slices, partition.positions, strict=True)
            ]
        found = dict(self._sums_across(partition, values, set(sparse)))
        return [
            self._part_of_total(each, position, values, totals)
            if position in totals or (each.is_owned and not isinstance(values[position], PerReplica))
            else found.get(id(each))
            for each, position in zip(partition.slices, partition.positions, strict=True)
        ]

    def _totals(self, partition: Partition, gradients: dict[int, Any], shares: Sequence[Share]) -> dict[int, Any]:
        """Returns the sums of gradients over all replicas, on all local devices.

        Sparse gradients can only be summed like this: their number of slices varies with the batch.
        """
        local = {i: value for i, value in gradients.items() if isinstance(value, PerReplica)}
        if not local:
            return gradients
        where = [partition.variables[i].value for i in local]
        sums = self._reductions.to_groups(SUM, list(local.values()), where, shares, as_gradients=True)
        return gradients | dict(zip(local, sums, strict=True))

    def _local_sum(self, each: WeightSlice, position: int, values: Sequence[Any], totals: dict[int, Any]) -> Any:
        if values[position] is None or position in totals or not isinstance(values[position], PerReplica):
            return self._part_of_total(each, position, values, totals)
        terms = []
        with in_process("reduce_scatter", "data"):
            for r, term in enumerate(values[position].values):
                with tf.device(each.on_replica(r).device):
                    terms.append(each.select(term))
            with tf.device(each.device):
                return sum_in_order(terms)

    def _part_of_total(self, each: WeightSlice, position: int, values: Sequence[Any], totals: dict[int, Any]) -> Any:
        """Returns the slice's part of a sum that is on all local devices; None without a sum or on other processes."""
        total = totals.get(position, values[position])
        if total is None or not each.is_owned:
            return None
        with tf.device(each.device):
            own = select_replica(each.replica, total)
            return each.select_slices(own) if isinstance(own, tf.IndexedSlices) else each.select(own)

    def _sums_across(
        self, partition: Partition, values: Sequence[Any], sparse: set[int]
    ) -> Iterator[tuple[int, tf.Tensor]]:
        """Yields (slice id, reduced gradient) for every slice that this process owns."""
        units = {partition.unit_of(each): each for each in partition.buckets}
        early: dict[int, tf.Tensor] = {}

        def reduce(unit: Any) -> list[tf.Operation]:
            each = units.get(unit)
            received = None if each is None else self._received(partition, each, values, sparse)
            if received is None:
                return []
            early[id(each)] = received
            return [received.op]

        self._gathers.unshard_for_backward(reduce)
        for each in partition.buckets:
            received = early.get(id(each))
            if received is None:
                received = self._received(partition, each, values, sparse)
            if received is None:
                continue
            number, bucket = each
            inside = self._processes[number].inside
            for local in range(self._layout.num_local):
                begin = local * bucket.part_size
                for own in partition.part_of(bucket, inside.rank * self._layout.num_local + local):
                    with tf.device(own.device):
                        yield id(own), tf.reshape(received[begin : begin + own.end - own.begin], own.shape)
                    begin += own.end - own.begin

    def _received(
        self, partition: Partition, each: PartitionedBucket, values: Sequence[Any], sparse: set[int]
    ) -> tf.Tensor | None:
        """Reduce-scatters a bucket; returns the flat sums of this process' slices, None without dense gradients."""
        number, bucket = each
        mine = {s.variable for s in bucket.slices if isinstance(values[s.variable], PerReplica)} - sparse
        if not mine:
            return None
        with tf.device(self._layout.groups[number].devices[0]):
            indices = sorted(mine, reverse=True)
            terms = self._reductions.terms([values[i] for i in indices], self._steps.context.shares)
            sums = {i: sum_in_order(local_values(term)) for i, term in zip(indices, terms, strict=True)}
            groups = self._processes[number]
            received = groups.inside.reduce_scatter(all_laid_out(bucket, sums, partition.dtype_of(bucket)))
            return groups.between.sum([received])[0]
