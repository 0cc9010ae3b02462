"""Reduces values of several replicas: over the devices of this process, then over the processes.

Gradients, metrics and a program's own reductions take the same two steps. With one process there is only the first, and
TensorFlow's own cross-device ops do it. With one local replica there is only the second: a local value is then a plain
tensor, as TensorFlow passes them where there is one replica.

Where a replica spans several devices, each sum is computed for one of its parts: over the devices that hold this part
in the replicas, its data-parallel group, and the sum stays there. Nothing goes through the devices of other parts.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.batches.shares import Share
from strategies.collectives.buckets import make_buckets
from strategies.collectives.fixed_order import sum_in_order
from strategies.collectives.process_group import ProcessGroup, if_present
from strategies.engine.layout import ReplicaLayout, local_values
from strategies.engine.slices_across import slices_across
from strategies.replica.slices import Lookups, combine_lookups
from strategies.topology.devices import is_gpu

#: The size of a bucket of gradients that the GPUs of one process sum by NCCL, which is fastest with large messages.
GPU_BUCKET_BYTES = 64 * 2**20

_SUM, _MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN

#: Reduces (value, destination) pairs over the devices of one group, in this process. Its arguments are
#: ``(reduce_op, pairs, devices, options)``.
LocalReduction = Callable[[Any, list[tuple[Any, Any]], tuple[str, ...], Any], list[Any]]


@dataclass(frozen=True)
class FusedReduction:
    """A fused small reduction: a small sum over all replicas that is sent with the gradients of its step.

    Attributes:
        values: the terms of the local replicas, ready before the last gradient is.
        group: the number of the data-parallel group on whose devices they are.
    """

    values: Sequence[tf.Tensor]
    group: int = 0

    @classmethod
    def from_variable(cls, variable: Any, group: int) -> FusedReduction:
        """Returns the fused reduction of a variable's local components, each read on its own device."""
        values = []
        for component in variable.values:
            with tf.device(component.device):
                values.append(component.read_value())
        return cls(values, group)


class Reductions:
    """Computes sums and means over all replicas.

    Args:
        layout: the replicas.
        reduce_locally: reduces dense values over the devices of this process.
    """

    def __init__(self, layout: ReplicaLayout, reduce_locally: LocalReduction) -> None:
        self._layout = layout
        self._reduce_locally = reduce_locally

    def to_groups(
        self,
        reduce_op: Any,
        values: Sequence[Any],
        where: Sequence[Any],
        shares: Sequence[Share] = (),
        *,
        present: bool | tf.Tensor = True,
        as_gradients: bool = False,
        options: Any = None,
        fused: Sequence[FusedReduction] = (),
    ) -> list[Any]:
        """Returns each value's reduction, on all local devices of the group of its destination, then the fused sums.

        Args:
            reduce_op: sum or mean.
            values: per-replica tensors or ``IndexedSlices``, of local shapes.
            where: for each value a distributed value, on whose devices its reduction is wanted.
            shares: the shares of the local replicas in the step that computed the values; empty without a step.
            present: with one local replica, True if this process' values count. With several, replicas that do not
                count must pass zeros.
            as_gradients: True to apply the compression and the reduction op of gradients.
            options: options for TensorFlow's reductions.
            fused: small reductions that are fused, only between processes. Their sums are as in :meth:`across`.
        """
        groups = [self._layout.group_of(each) for each in where]
        if self._layout.process_group is not None:
            totals = self.across(
                reduce_op,
                values,
                shares,
                present,
                as_gradients=as_gradients,
                on_all_devices=True,
                groups=groups,
                fused=fused,
            )
            copied = [
                total if isinstance(total, PerReplica) else self._layout.copied_to(k, total)
                for total, k in zip(totals, groups, strict=False)
            ]
            return [*copied, *totals[len(copied) :]]
        if fused:
            raise RuntimeError("There are no other processes.")
        found: list[Any] = [None] * len(values)
        dense: dict[tuple[str, ...], list[int]] = {}
        for i, (value, destination) in enumerate(zip(values, where, strict=True)):
            if reduce_op == _SUM and _is_sparse(value):
                found[i] = self._joined(value, shares, groups[i])
            else:
                dense.setdefault(tuple(getattr(destination, "_devices", ())), []).append(i)
        options = options or tf.distribute.experimental.CommunicationOptions()
        for devices, indices in dense.items():
            for packed in _packs(values, indices, devices) if as_gradients else [indices]:
                made = self._reduce_locally(reduce_op, [(values[i], where[i]) for i in packed], devices, options)
                for i, total in zip(packed, made, strict=True):
                    found[i] = total
        return found

    def _joined(self, value: Any, shares: Sequence[Share], group: int) -> Any:
        """Concatenates the slices of the local replicas, on each device of a group.

        Their number depends on the rows of the batch: collectives, which have a fixed shape, cannot send them.
        """
        devices = self._layout.groups[group].devices
        if not any(is_gpu(device) for device in devices):
            with tf.device(devices[0]):
                return self._layout.copied_to(group, _lookups(value, shares).joined())
        joined = []
        for device in devices:
            # Each device copies from all others: GPUs copy pairwise, and the first GPU is no bottleneck.
            with tf.device(device):
                joined.append(_lookups(value, shares).joined())
        return PerReplica(tuple(joined))

    def to_device(self, device: str, values: Sequence[Any], shares: Sequence[Share]) -> list[Any]:
        """Returns the sum of each value over the local replicas, on one device; slices are concatenated.

        Args:
            device: the device's full name.
            values: per-replica tensors or ``IndexedSlices``, of local shapes.
            shares: the shares of the local replicas in the step in which the values were computed.
        """
        with tf.device(device):
            return [
                _lookups(value, shares).joined() if _is_sparse(value) else sum_in_order(local_values(value))
                for value in values
            ]

    def across(
        self,
        reduce_op: Any,
        values: Sequence[Any],
        shares: Sequence[Share] = (),
        present: bool | tf.Tensor = True,
        *,
        as_gradients: bool = False,
        on_all_devices: bool = False,
        groups: Sequence[int] | None = None,
        fused: Sequence[FusedReduction] = (),
    ) -> list[Any]:
        """Returns the reduction of each value over all replicas of all processes, then the sum of each of `fused`.

        Each result is on the first local device of its group: `groups` has one group per value; None means group 0.
        With `on_all_devices`, dense results are per replica where the process group joins the devices. The other
        arguments are those of :meth:`to_groups`.
        """
        wanted = [0] * len(values) if groups is None else list(groups)
        wanted += [reduction.group for reduction in fused]
        totals: list[Any] = [None] * len(wanted)
        # Sorted: all processes must run the groups' collectives in the same order.
        for k in sorted(set(wanted)):
            mine = [i for i, group in enumerate(wanted) if group == k]
            own = [i for i in mine if i < len(values)]
            chosen = [fused[i - len(values)] for i in mine if i >= len(values)]
            with tf.device(self._layout.groups[k].devices[0]):
                process_group = self._layout.groups[k].process_group
                if process_group is None:
                    raise RuntimeError("There are no other processes.")
                local = [values[i] for i in own]
                if on_all_devices and process_group.joins_devices:
                    made, also = _sums_of_devices(process_group, local, shares, chosen)
                else:
                    made, also = _sums_across(process_group, local, shares, present, as_gradients, chosen)
                if reduce_op == _MEAN:
                    n = self._layout.num_replicas
                    made = [_divided(total, n) for total in made]
            for i, total in zip(mine, (*made, *also), strict=True):
                totals[i] = total
        return totals

    def counted(self, values: Sequence[Any], shares: Sequence[Share]) -> list[Any]:
        """Returns the values, with zeros for replicas without rows of their own; other values are not copied."""
        values = list(values)
        mine = [i for i, v in enumerate(values) if isinstance(v, PerReplica) and len(v.values) == len(shares)]
        if not mine or all(share.has_rows is True for share in shares):
            return values
        per_replica = []
        for r, (share, first) in enumerate(zip(shares, self._layout.devices, strict=True)):
            own = {group.devices[r] for group in self._layout.groups}
            by_device: dict[str, list[int]] = {}
            for i in mine:
                device = getattr(values[i].values[r], "device", first)
                by_device.setdefault(device if device in own else first, []).append(i)
            kept: dict[int, Any] = {}
            for device, indices in by_device.items():
                # Without a device, the conditional would copy all values to the first device.
                with tf.device(device):
                    present = if_present(share.has_rows, [values[i].values[r] for i in indices])
                kept |= zip(indices, present, strict=True)
            per_replica.append([kept[i] for i in mine])
        for i, components in zip(mine, zip(*per_replica, strict=True), strict=True):
            values[i] = PerReplica(components)
        return values


def _divided(total: Any, n: int) -> Any:
    if isinstance(total, PerReplica):
        return PerReplica(tuple(_divided(each, n) for each in total.values))
    return tf.cast(total / tf.cast(n, total.dtype), total.dtype)


def _packs(values: Sequence[Any], indices: Sequence[int], devices: Sequence[str]) -> list[list[int]]:
    """Returns the buckets of gradients, as lists of indices, in the order in which they are reduced.

    TensorFlow's collectives pack all tensors of one call into one message, which then waits for the last gradient.
    Between CPU devices gradients are added one by one, each when it is ready.
    """
    if not any(is_gpu(device) for device in devices):
        return [list(indices)]
    tensors = [local_values(values[i])[0] for i in indices]
    sizes = [(tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors]
    buckets = make_buckets(sizes, [tensor.dtype.name for tensor in tensors], GPU_BUCKET_BYTES)
    return [[indices[i] for i in bucket.indices] for bucket in buckets]


def _is_sparse(value: Any) -> bool:
    return isinstance(local_values(value)[0], tf.IndexedSlices)


def _lookups(value: Any, shares: Sequence[Share]) -> Lookups:
    """Returns the slices of all local replicas as one object."""
    local = local_values(value)
    if len(local) != len(shares):
        return Lookups((), tuple(local))
    return combine_lookups([Lookups.from_gradient(each, s.dependence) for each, s in zip(local, shares, strict=True)])


def _sums_across(
    process_group: ProcessGroup,
    values: Sequence[Any],
    shares: Sequence[Share],
    present: bool | tf.Tensor,
    as_gradients: bool,
    fused: Sequence[FusedReduction],
) -> tuple[list[Any], list[tf.Tensor]]:
    """Returns the sums of the values, and the sums of `fused`."""
    sum_dense = process_group.sum_gradients if as_gradients else process_group.sum
    lookups = {i: _lookups(value, shares) for i, value in enumerate(values) if _is_sparse(value)}
    totals: list[Any] = [None if i in lookups else sum_in_order(local_values(value)) for i, value in enumerate(values)]
    if as_gradients and process_group.combines_means and shares:
        # The weight of the rows of all local replicas.
        weight = tf.add_n([tf.convert_to_tensor(share.local_weight(), tf.float32) for share in shares])
        for i, own in lookups.items():
            totals[i] = tf.convert_to_tensor(own.joined())
        totals = [tf.math.divide_no_nan(total, tf.cast(weight, total.dtype)) for total in totals]
        lookups = {}
    dense = [i for i in range(len(totals)) if i not in lookups]
    fused_terms = [sum_in_order(reduction.values) for reduction in fused]
    sums = sum_dense([totals[i] for i in dense], present, fused_terms)
    for i, total in zip(dense, sums, strict=False):
        totals[i] = total
    for i, own in lookups.items():
        totals[i] = slices_across(process_group, own, present)
    return totals, sums[len(dense) :]


def _sums_of_devices(
    process_group: ProcessGroup, values: Sequence[Any], shares: Sequence[Share], fused: Sequence[FusedReduction]
) -> tuple[list[Any], list[tf.Tensor]]:
    """Like `_sums_across`, but dense values are reduced between all devices, with per-replica results."""
    dense = [i for i, value in enumerate(values) if not _is_sparse(value)]
    terms = [_spread(local_values(values[i]), process_group.devices) for i in dense]
    fused_terms = [_spread(reduction.values, process_group.devices) for reduction in fused]
    sums = process_group.sum_of_devices(terms, fused_terms)
    totals: list[Any] = [None] * len(values)
    for i, total in zip(dense, sums, strict=False):
        totals[i] = PerReplica(tuple(total))
    for i, value in enumerate(values):
        if i not in dense:
            totals[i] = slices_across(process_group, _lookups(value, shares), present=True)
    return totals, [total[0] for total in sums[len(dense) :]]


def _spread(terms: Sequence[tf.Tensor], devices: Sequence[str]) -> list[tf.Tensor]:
    """Returns a term for each device; fewer terms are summed onto the first device, and the others get zeros."""
    if len(terms) == len(devices):
        return list(terms)
    total = sum_in_order(terms)
    zeros = []
    for device in devices[1:]:
        with tf.device(device):
            zeros.append(tf.zeros(total.shape, total.dtype))
    return [total, *zeros]
