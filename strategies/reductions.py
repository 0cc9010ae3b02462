"""How values of several replicas become one: over the devices of this process, then over the processes.

Gradients, metrics and whatever a program reduces itself take the same two steps. With one process there is only the
first, and TensorFlow's own cross-device ops do it. With one local device there is only the second: a local value is
then a plain tensor, as TensorFlow hands them over where there is one replica.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies import shares
from strategies._tf_internals import DistributedVariable, PerReplica, is_mirrored
from strategies.crossing import Crossing, if_present
from strategies.waiting import Waits

_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


class ReducingExtended:
    """Mix-in before a ``StrategyExtended`` class of TensorFlow that has one local device per replica."""

    #: Joins this process to the others of the job; None where there are none.
    crossing: Crossing | None
    #: The shares of the local replicas in the step that is running.
    _shares: list[shares.Share]
    _presummed: dict[int, tf.Tensor]
    #: What this process waits for.
    waits: Waits

    #: One per local replica.
    worker_devices: Sequence[str]

    def _start_reductions(self, crossing: Crossing | None) -> None:
        self.crossing = crossing
        self._shares = []
        self._presummed = {}

    # ---- TensorFlow's interface

    def _reduce_to(self, reduce_op: Any, value: Any, destinations: Any, options: Any) -> Any:
        if self.crossing is None:
            return super()._reduce_to(reduce_op, value, destinations, options)  # type: ignore[misc]
        if reduce_op == _MEAN and is_mirrored(value):
            return value
        return tf.nest.map_structure(lambda leaf: self._reduce_across(reduce_op, [leaf])[0], value)

    def _batch_reduce_to(self, reduce_op: Any, value_destination_pairs: Any, options: Any) -> Any:
        # What ReplicaContext.all_reduce comes to, as in BatchNormalization(synchronized=True).
        values = [_cut(value) for value, _ in value_destination_pairs]
        if reduce_op == _SUM:
            values = self._without_borrowed(self._as_local(values))
        if self.crossing is not None:
            return [self._on_all_devices(total) for total in self._reduce_across(reduce_op, values)]
        pairs = [(value, where) for value, (_, where) in zip(values, value_destination_pairs, strict=True)]
        return self._reduce_by_column(reduce_op, pairs, options)

    def _gather_to_implementation(self, value: Any, destinations: Any, axis: Any, options: Any) -> Any:
        if self.crossing is None:
            return super()._gather_to_implementation(value, destinations, axis, options)  # type: ignore[misc]
        local = [tf.convert_to_tensor(v) for v in self._local_values(value)]
        return self.crossing.gather(tf.concat(local, axis) if len(local) > 1 else local[0], int(axis))

    # ---- sums over replicas

    def _sum_gradients(
        self, gradients: Sequence[Any], present: bool | tf.Tensor = True, destinations: Sequence[Any] | None = None
    ) -> list[Any]:
        """Returns the sums over all replicas of the per-replica ``gradients``; the rest is left as it is.

        With one local replica of several, `present` says whether its gradients count. Inside one process, sums lie
        on the devices of `destinations`, a distributed value per gradient; where each gradient was, if None.
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
        if self.crossing is not None:
            totals = self._reduce_across(_SUM, [sums[i] for i in reducible], present, gradients=True)
            for i, total in zip(reducible, totals, strict=True):
                sums[i] = self._on_all_devices(total)
            return sums
        sparse = [i for i in reducible if isinstance(sums[i].values[0], tf.IndexedSlices)]
        dense = [i for i in reducible if i not in sparse]
        where = sums if destinations is None else list(destinations)
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

    def _sum_sparse(self, pairs: list[tuple[Any, Any]]) -> Any:
        # As many slices as the batch has rows: collectives, which are bound to one shape, cannot carry them.
        return tf.distribute.ReductionToOneDevice().batch_reduce(_SUM, pairs)

    def _without_borrowed(self, values: Sequence[Any]) -> list[Any]:
        """Zeroes what replicas without rows would add to sums; the rest passes through uncopied."""
        values = list(values)
        mine = [i for i, v in enumerate(values) if isinstance(v, PerReplica) and len(v.values) == len(self._shares)]
        if not mine or all(share.has_rows is True for share in self._shares):
            return values
        per_replica = []
        for r, (share, device) in enumerate(zip(self._shares, self.worker_devices, strict=True)):
            # Without a device, the conditional would take all values to the first one.
            with tf.device(device):
                per_replica.append(if_present(share.has_rows, [values[i].values[r] for i in mine]))
        for i, components in zip(mine, zip(*per_replica, strict=True), strict=True):
            values[i] = PerReplica(components)
        return values

    # ---- between processes

    def _local_values(self, value: Any) -> Sequence[Any]:
        return value.values if isinstance(value, (PerReplica, DistributedVariable)) else (value,)

    def _as_local(self, values: Sequence[Any]) -> list[Any]:
        """Marks as local the plain values that TensorFlow hands over where this process has one replica of several."""
        if self.crossing is None or len(self.worker_devices) > 1:
            return list(values)
        return [v if v is None or isinstance(v, PerReplica) else PerReplica((v,)) for v in values]

    def _on_all_devices(self, total: Any) -> Any:
        copies = []
        for device in self.worker_devices:
            with tf.device(device):
                copies.append(tf.nest.map_structure(tf.identity, total, expand_composites=True))
        return PerReplica(tuple(copies)) if len(copies) > 1 else total

    def _reduce_across(
        self, reduce_op: Any, values: Sequence[Any], present: bool | tf.Tensor = True, *, gradients: bool = False
    ) -> list[Any]:
        """Returns per value the sum or mean over all replicas of all processes, on the first local device."""
        crossing = _joined(self.crossing)
        sum_dense = crossing.sum_gradients if gradients else crossing.sum
        with tf.device(self.worker_devices[0]):
            totals: list[Any] = [_add_up(self._local_values(value)) for value in values]
            if gradients and crossing.combines_means and self._shares:
                totals = [self._shares[0].unweigh(tf.convert_to_tensor(total)) for total in totals]
            sparse = [i for i, total in enumerate(totals) if isinstance(total, tf.IndexedSlices)]
            dense = [i for i in range(len(totals)) if i not in sparse]
            for i, total in zip(dense, sum_dense([totals[i] for i in dense], present), strict=True):
                totals[i] = total
            for i in sparse:
                slices = if_present(present, [totals[i]])[0]
                gathered = crossing.gather(slices.values), crossing.gather(slices.indices)
                totals[i] = tf.IndexedSlices(*gathered, slices.dense_shape)
            if reduce_op == _MEAN:
                n: int = self._num_replicas_in_sync  # type: ignore[attr-defined]
                totals = [tf.cast(total / tf.cast(n, total.dtype), total.dtype) for total in totals]
        return totals

    @contextlib.contextmanager
    def presummed(self, variables: Iterable[Any]) -> Iterator[None]:
        """Sums the metric ``variables`` over all replicas at once, for reads inside: one message instead of many."""
        if self.crossing is None or self._presummed:
            yield
            return
        chosen = [v for v in variables if v.aggregation == tf.VariableAggregation.SUM]
        parts = [PerReplica(tuple(component.read_value() for component in v.values)) for v in chosen]
        self._presummed = dict(zip(map(id, chosen), self._reduce_across(_SUM, parts), strict=True))
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


def _joined(crossing: Crossing | None) -> Crossing:
    if crossing is None:
        raise RuntimeError("There are no other processes.")
    return crossing


def _add_up(values: Sequence[Any]) -> Any:
    """Returns the sum of a local value per replica; of slices, all of them end to end."""
    values = [tf.convert_to_tensor(v) if not isinstance(v, tf.IndexedSlices) else v for v in values]
    if len(values) == 1:
        return values[0]
    if isinstance(values[0], tf.IndexedSlices):
        slices = [tf.concat(parts, axis=0) for parts in zip(*((v.values, v.indices) for v in values), strict=True)]
        return tf.IndexedSlices(*slices, values[0].dense_shape)
    total = values[0]
    for value in values[1:]:
        total += value
    return total
