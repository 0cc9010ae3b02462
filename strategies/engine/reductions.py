"""Reductions of the values of several replicas: over the devices of this process, then over the processes.

Gradients, metrics and whatever a program reduces itself take the same two steps. With one process there is only the
first, and TensorFlow's own cross-device ops do it. With one local replica there is only the second: a local value is
then a plain tensor, as TensorFlow hands them over where there is one replica.

Where a replica spans several devices, each sum is made for one of its parts: over the devices that have this part in
their replicas, a column of the mesh, and there it stays. Nothing passes the devices of other parts.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import DistributedVariable, PerReplica, is_mirrored
from strategies.batches import shares
from strategies.batches.row_dependence import mark
from strategies.batches.row_kinds import Kind
from strategies.collectives.process_group import ProcessGroup, if_present
from strategies.engine.waiting import Waits
from strategies.replica.slices import Lookups, of_batch, side_by_side

_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


@dataclass(frozen=True)
class Column:
    """The devices that hold one part of all replicas of this process, and their process group.

    Attributes:
        devices: full names, one for each local replica.
        process_group: joins the first of them to those of the other processes; None where there are none.
    """

    devices: tuple[str, ...]
    process_group: ProcessGroup | None = None


class ReducingExtended:
    """Mix-in before a ``StrategyExtended`` class of TensorFlow that has one local device per replica."""

    #: One for each part of a replica; the first one's devices are the `worker_devices`.
    columns: Sequence[Column]
    #: The shares of the local replicas in the step that is running.
    _shares: list[shares.Share]
    _presummed: dict[int, tf.Tensor]
    #: The seconds that this process waits for batches and for sums.
    waits: Waits

    #: One per local replica.
    worker_devices: Sequence[str]

    def _start_reductions(self, columns: Sequence[Column]) -> None:
        self.columns = tuple(columns)
        self._shares = []
        self._presummed = {}

    @property
    def process_group(self) -> ProcessGroup | None:
        """Joins this process to the others of the job; None where there are none."""
        return self.columns[0].process_group

    def _column_of(self, where: Any) -> int:
        """The part on whose devices a distributed value, or a tensor, is; 0 if it is on those of none."""
        devices = tuple(getattr(value, "device", "") for value in self._local_values(where))
        return next((k for k, column in enumerate(self.columns) if column.devices == devices), 0)

    # ---- TensorFlow's interface

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if self.process_group is None:
            return super()._reduce_to(reduce_op, value, destinations, options)  # type: ignore[misc]
        if reduce_op == _MEAN and is_mirrored(value):
            return value
        return tf.nest.map_structure(lambda leaf: self._reduce_across(reduce_op, [leaf])[0], value)

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        # Called for ReplicaContext.all_reduce, as in BatchNormalization(synchronized=True).
        values = [_cut(value) for value, _ in value_destination_pairs]
        if reduce_op == _SUM:
            values = self._without_borrowed(self._as_local(values))
        if self.process_group is not None:
            columns = [self._column_of(where) for _, where in value_destination_pairs]
            totals = self._reduce_across(reduce_op, values, columns=columns)
            return [self._same(self._on_column(total, k)) for total, k in zip(totals, columns, strict=True)]
        pairs = [(value, where) for value, (_, where) in zip(values, value_destination_pairs, strict=True)]
        return [self._same(total) for total in self._reduce_by_column(reduce_op, pairs, options)]

    def _same(self, total: Any) -> Any:
        """Notes that a sum over replicas is the same on all of them, whatever each has given."""
        for value in total.values if isinstance(total, tf.distribute.DistributedValues) else (total,):
            mark(value, Kind.SAME)
        return total

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        if self.process_group is None:
            return super()._gather_to_implementation(value, destinations, axis, options)  # type: ignore[misc]
        local = [tf.convert_to_tensor(v) for v in self._local_values(value)]
        return self.process_group.gather(tf.concat(local, axis) if len(local) > 1 else local[0], int(axis))

    # ---- sums over replicas

    def _sum_gradients(
        self, gradients: Sequence[Any], present: bool | tf.Tensor = True, destinations: Sequence[Any] | None = None
    ) -> list[Any]:
        """Returns the sums over all replicas of the per-replica ``gradients``; the rest is left as it is.

        With one local replica of several, `present` says whether its gradients count. Sums lie on the devices of
        `destinations`, a distributed value per gradient; where each gradient was, if None.
        """
        local = [g for g in gradients if isinstance(g, PerReplica)]
        if not self.waits.watches_communication or not local:
            return self._summed_gradients(gradients, present, destinations)
        begin = self.waits.moment_after(local)
        sums = self._summed_gradients(gradients, present, destinations)
        end = self.waits.moment_after([s for s, g in zip(sums, gradients, strict=True) if isinstance(g, PerReplica)])
        self.waits.add_communication(begin, end)
        return sums

    def _summed_gradients(
        self, gradients: Sequence[Any], present: bool | tf.Tensor, destinations: Sequence[Any] | None
    ) -> list[Any]:
        sums = list(gradients)
        reducible = [i for i, g in enumerate(sums) if isinstance(g, PerReplica)]
        where = sums if destinations is None else list(destinations)
        if self.process_group is not None:
            columns = [self._column_of(where[i]) for i in reducible]
            parts = [sums[i] for i in reducible]
            totals = self._reduce_across(_SUM, parts, present, gradients=True, columns=columns)
            for i, k, total in zip(reducible, columns, totals, strict=True):
                sums[i] = self._on_column(total, k)
            return sums
        sparse = [i for i in reducible if isinstance(sums[i].values[0], tf.IndexedSlices)]
        dense = [i for i in reducible if i not in sparse]
        for indices, reduce in ((dense, self._sum_dense), (sparse, self._sum_sparse)):
            if indices:
                for i, total in zip(indices, reduce([(sums[i], where[i]) for i in indices]), strict=True):
                    sums[i] = total
        return sums

    def _sum_dense(self, pairs: list[tuple[Any, Any]]) -> list[Any]:
        return self._reduce_by_column(_SUM, pairs, tf.distribute.experimental.CommunicationOptions())

    def _reduce_by_column(self, reduce_op: Any, pairs: list[tuple[Any, Any]], options: Any) -> list[Any]:
        """Reduces each value over the devices on which it is wanted: those of one part of the replicas."""
        columns: dict[tuple[str, ...], list[int]] = {}
        for i, (_, where) in enumerate(pairs):
            columns.setdefault(tuple(getattr(where, "_devices", ())), []).append(i)
        found: list[Any] = [None] * len(pairs)
        for devices, indices in columns.items():
            with self._reducing(devices):
                totals = super()._batch_reduce_to(  # type: ignore[misc]
                    reduce_op, [pairs[i] for i in indices], options
                )
            for i, total in zip(indices, totals, strict=True):
                found[i] = total
        return found

    def _reducing(self, devices: tuple[str, ...]) -> contextlib.AbstractContextManager[None]:
        """Inside, TensorFlow's cross-device ops are those of `devices`, one for each local replica."""
        return contextlib.nullcontext()

    def _sum_sparse(self, pairs: list[tuple[Any, Any]]) -> list[Any]:
        # As many slices as the batch has rows: collectives, which are bound to one shape, cannot carry them.
        totals = []
        for value, where in pairs:
            column = self._column_of(where)
            with tf.device(self.columns[column].devices[0]):
                total = self._lookups(value).joined()
            totals.append(self._on_column(total, column))
        return totals

    def _lookups(self, value: Any) -> Lookups:
        """Returns the slices that the local replicas have together."""
        local = self._local_values(value)
        if len(local) != len(self._shares):
            return Lookups((), tuple(local))
        return of_batch([Lookups.of(each, s.dependence) for each, s in zip(local, self._shares, strict=True)])

    def _without_borrowed(self, values: Sequence[Any]) -> list[Any]:
        """Zeroes what replicas without rows would add to sums; the rest passes through uncopied."""
        values = list(values)
        mine = [i for i, v in enumerate(values) if isinstance(v, PerReplica) and len(v.values) == len(self._shares)]
        if not mine or all(share.has_rows is True for share in self._shares):
            return values
        per_replica = []
        for r, (share, first) in enumerate(zip(self._shares, self.worker_devices, strict=True)):
            own = {column.devices[r] for column in self.columns}
            places: dict[str, list[int]] = {}
            for i in mine:
                device = getattr(values[i].values[r], "device", first)
                places.setdefault(device if device in own else first, []).append(i)
            kept: dict[int, Any] = {}
            for device, indices in places.items():
                # Without a device, the conditional would take all values to the first one.
                with tf.device(device):
                    present = if_present(share.has_rows, [values[i].values[r] for i in indices])
                kept |= zip(indices, present, strict=True)
            per_replica.append([kept[i] for i in mine])
        for i, components in zip(mine, zip(*per_replica, strict=True), strict=True):
            values[i] = PerReplica(components)
        return values

    # ---- between processes

    def _local_values(self, value: Any) -> Sequence[Any]:
        return value.values if isinstance(value, (PerReplica, DistributedVariable)) else (value,)

    def _as_local(self, values: Sequence[Any]) -> list[Any]:
        """Marks as local the plain values that TensorFlow hands over where this process has one replica of several."""
        if self.process_group is None or len(self.worker_devices) > 1:
            return list(values)
        return [v if v is None or isinstance(v, PerReplica) else PerReplica((v,)) for v in values]

    def _on_column(self, total: Any, column: int) -> Any:
        copies = []
        for device in self.columns[column].devices:
            with tf.device(device):
                copies.append(tf.nest.map_structure(tf.identity, total, expand_composites=True))
        return PerReplica(tuple(copies)) if len(copies) > 1 else total

    def _reduce_across(
        self,
        reduce_op: Any,
        values: Sequence[Any],
        present: bool | tf.Tensor = True,
        *,
        gradients: bool = False,
        columns: Sequence[int] | None = None,
    ) -> list[Any]:
        """Returns per value the sum or mean over all replicas of all processes.

        Each is on the first local device of its column, one of `columns` per value; of the first one, if None.
        """
        wanted = [0] * len(values) if columns is None else list(columns)
        totals: list[Any] = [None] * len(values)
        # In an order that all processes have: they meet in that of their calls.
        for k in sorted(set(wanted)):
            own = [i for i, column in enumerate(wanted) if column == k]
            with tf.device(self.columns[k].devices[0]):
                process_group = _joined(self.columns[k].process_group)
                made = self._sums_across(process_group, [values[i] for i in own], present, gradients)
                if reduce_op == _MEAN:
                    n: int = self._num_replicas_in_sync  # type: ignore[attr-defined]
                    made = [tf.cast(total / tf.cast(n, total.dtype), total.dtype) for total in made]
            for i, total in zip(own, made, strict=True):
                totals[i] = total
        return totals

    def _sums_across(
        self, process_group: ProcessGroup, values: Sequence[Any], present: bool | tf.Tensor, gradients: bool
    ) -> list[Any]:
        sum_dense = process_group.sum_gradients if gradients else process_group.sum
        sparse = [i for i, value in enumerate(values) if isinstance(self._local_values(value)[0], tf.IndexedSlices)]
        lookups = {i: self._lookups(values[i]) for i in sparse}
        totals: list[Any] = [
            None if i in lookups else _add_up(self._local_values(value)) for i, value in enumerate(values)
        ]
        if gradients and process_group.combines_means and self._shares:
            # Of the rows of all local replicas.
            weight = tf.add_n([tf.convert_to_tensor(share.weight_here(), tf.float32) for share in self._shares])
            for i, own in lookups.items():
                totals[i] = tf.convert_to_tensor(own.joined())
            totals = [tf.math.divide_no_nan(total, tf.cast(weight, total.dtype)) for total in totals]
            lookups = {}
        dense = [i for i in range(len(totals)) if i not in lookups]
        for i, total in zip(dense, sum_dense([totals[i] for i in dense], present), strict=True):
            totals[i] = total
        for i, own in lookups.items():
            totals[i] = _slices_across(process_group, own, present)
        return totals

    @contextlib.contextmanager
    def presummed(self, variables: Iterable[Any]) -> Iterator[None]:
        """Sums the metric ``variables`` over all replicas at once, for reads inside: one message instead of many."""
        if self.process_group is None or self._presummed:
            yield
            return
        chosen = [v for v in variables if v.aggregation == tf.VariableAggregation.SUM]
        parts = [PerReplica(tuple(component.read_value() for component in v.values)) for v in chosen]
        totals = self._reduce_across(_SUM, parts, columns=[self._column_of(v) for v in chosen])
        self._presummed = dict(zip(map(id, chosen), totals, strict=True))
        try:
            yield
        finally:
            self._presummed = {}

    def presum_of(self, variable: Any) -> tf.Tensor | None:
        """Returns the sum that :meth:`presummed` has made of ``variable``; None if it has not."""
        return self._presummed.get(id(variable))


def _cut(value: Any) -> Any:
    """Returns the tensors of ``value``, with a border that no gradient passes.

    None would: a reduction has a gradient of its own. But TensorFlow searches the graph behind a reduction for
    variables, through all that the other replicas have done so far, at every reduction of a model anew.
    """
    if isinstance(value, tf.Tensor):
        return tf.stop_gradient(value)
    if not isinstance(value, PerReplica) or not all(isinstance(v, tf.Tensor) for v in value.values):
        return value
    components = []
    for component in value.values:
        with tf.device(component.device):
            components.append(tf.stop_gradient(component))
    return PerReplica(tuple(components))


def _joined(process_group: ProcessGroup | None) -> ProcessGroup:
    if process_group is None:
        raise RuntimeError("There are no other processes.")
    return process_group


def _slices_across(process_group: ProcessGroup, local: Lookups, present: bool | tf.Tensor) -> tf.IndexedSlices:
    """Returns the slices of all processes."""
    num_shared = len(local.shared)
    mine = if_present(present, [*local.shared, *([side_by_side(local.own)] if local.own else [])])
    all_slices = []
    for i, slices in enumerate(mine):
        if i >= num_shared:
            gathered = process_group.gather(slices.values), process_group.gather(slices.indices)
            all_slices.append(tf.IndexedSlices(*gathered, slices.dense_shape))
            continue
        if slices.values.shape.is_fully_defined():
            total = process_group.sum([slices.values])[0]
        else:
            # A sum is bound to one shape.
            gathered_values = process_group.gather(slices.values[tf.newaxis])
            total = tf.reduce_sum(gathered_values, 0)
        all_slices.append(tf.IndexedSlices(total, slices.indices, slices.dense_shape))
    return side_by_side(all_slices)


def _add_up(values: Sequence[Any]) -> tf.Tensor:
    """Returns the sum of a local value per replica."""
    total, *others = map(tf.convert_to_tensor, values)
    for other in others:
        total += other
    return total
