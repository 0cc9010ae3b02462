"""Reduces values of several replicas: over the devices of this process, then over the processes.

Gradients, metrics and a program's own reductions take the same two steps. With one local replica there is only the
second: a local value is then a plain tensor, as TensorFlow passes them where there is one replica. With one process
there is only the first, see ``device_reductions.py``.

Where a replica spans several devices, each sum is computed for one of its parts: over the devices that hold this part
in the replicas, its data-parallel group, and the sum stays there. Nothing goes through the devices of other parts.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.batches.shares import Share
from strategies.buckets import make_buckets
from strategies.collectives.fixed_order import sum_in_order
from strategies.collectives.process_group import ProcessGroup
from strategies.replica.slices import Lookups, combine_lookups
from strategies.steps.layout import ReplicaLayout, local_values
from strategies.steps.slices_across import slices_across

SUM, MEAN = tf.distribute.ReduceOp.SUM, tf.distribute.ReduceOp.MEAN


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
    """

    def __init__(self, layout: ReplicaLayout) -> None:
        self._layout = layout

    @property
    def _bucket_bytes(self) -> int:
        """The maximum size of a bucket of gradients."""
        return self._layout.process_group.bucket_bytes

    def to_groups(
        self,
        reduce_op: Any,
        values: Sequence[Any],
        where: Sequence[Any],
        shares: Sequence[Share] = (),
        *,
        as_gradients: bool = False,
        options: Any = None,
        fused: Sequence[FusedReduction] = (),
    ) -> list[Any]:
        """Returns each value's reduction, on all local devices of the group of its destination, then the fused sums.

        Args:
            reduce_op: sum or mean. Replicas without rows of their own add nothing to a sum.
            values: per-replica tensors or ``IndexedSlices``, of local shapes.
            where: for each value a distributed value, on whose devices its reduction is wanted.
            shares: the shares of the local replicas in the step that computed the values; empty without a step.
            as_gradients: True to apply the compression and the reduction op of gradients.
            options: options for TensorFlow's reductions.
            fused: small reductions that are fused. Their sums are as in :meth:`across`.
        """
        groups = [self._layout.group_of(each) for each in where]
        terms = self.terms(values, shares) if reduce_op == SUM else values
        totals = self._across(reduce_op, terms, shares, groups, fused, as_gradients=as_gradients, on_all_devices=True)
        copied = [
            total if isinstance(total, PerReplica) else self._layout.copied_to(k, total)
            for total, k in zip(totals, groups, strict=False)
        ]
        return [*copied, *totals[len(copied) :]]

    def to_device(self, device: str, values: Sequence[Any], shares: Sequence[Share]) -> list[Any]:
        """Returns the sum of each value over the local replicas, on one device; slices are concatenated.

        Args:
            device: the device's full name.
            values: per-replica tensors or ``IndexedSlices``, of local shapes.
            shares: the shares of the local replicas in the step in which the values were computed.
        """
        with tf.device(device):
            return [
                joined_lookups(value, shares).joined() if is_sparse(value) else sum_in_order(local_values(value))
                for value in self.terms(values, shares)
            ]

    def across(
        self,
        reduce_op: Any,
        values: Sequence[Any],
        shares: Sequence[Share] = (),
        fused: Sequence[FusedReduction] = (),
    ) -> list[Any]:
        """Returns the reduction of each value over all replicas of all processes, then the sum of each of `fused`.

        Each result is on the first local device of its group; that of a value is group 0. The arguments are those of
        :meth:`to_groups`, but replicas without rows count.
        """
        return self._across(reduce_op, values, shares, [0] * len(values), fused)

    def _across(
        self,
        reduce_op: Any,
        values: Sequence[Any],
        shares: Sequence[Share],
        groups: Sequence[int],
        fused: Sequence[FusedReduction],
        *,
        as_gradients: bool = False,
        on_all_devices: bool = False,
    ) -> list[Any]:
        """Like :meth:`across`, in the group of each value.

        With `on_all_devices`, dense results are per replica where the process group joins the devices.
        """
        wanted = [*groups, *(reduction.group for reduction in fused)]
        totals: list[Any] = [None] * len(wanted)
        # Sorted: all processes must run the groups' collectives in the same order.
        for k in sorted(set(wanted)):
            mine = [i for i, group in enumerate(wanted) if group == k]
            local = [values[i] for i in mine if i < len(values)]
            chosen = [fused[i - len(values)] for i in mine if i >= len(values)]
            process_group = self._layout.groups[k].process_group
            with tf.device(self._layout.groups[k].devices[0]):
                if on_all_devices and process_group.joins_devices:
                    made, also = _sums_of_devices(process_group, local, shares, chosen)
                else:
                    made, also = _sums_across(process_group, local, shares, as_gradients, chosen)
                if reduce_op == MEAN:
                    made = [_divided(total, self._layout.num_replicas) for total in made]
            for i, total in zip(mine, (*made, *also), strict=True):
                totals[i] = total
        return totals

    def terms(self, values: Sequence[Any], shares: Sequence[Share]) -> list[Any]:
        """Returns the replicas' terms of sums: zeros for replicas without rows of their own; copies no other value.

        Each bucket has a conditional of its own: it need not wait for the gradients that follow.
        """
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
                for bucket in in_buckets(values, indices, self._bucket_bytes):
                    # Without a device, the conditional would copy all values to the first device.
                    with tf.device(device):
                        kept |= zip(bucket, share.terms([values[i].values[r] for i in bucket]), strict=True)
            per_replica.append([kept[i] for i in mine])
        for i, components in zip(mine, zip(*per_replica, strict=True), strict=True):
            values[i] = PerReplica(components)
        return values


def is_sparse(value: Any) -> bool:
    """Returns True if a value is ``IndexedSlices``, on each replica."""
    return isinstance(local_values(value)[0], tf.IndexedSlices)


def is_int32(value: Any) -> bool:
    """Returns True for int32, on any replica, which TensorFlow sums on the host."""
    return any(each.dtype == tf.int32 for each in local_values(value))


def in_buckets(values: Sequence[Any], indices: Sequence[int], bucket_bytes: int) -> list[list[int]]:
    """Returns the buckets of the values at `indices`, as lists of indices, in the order in which they are ready."""
    tensors = [local_values(values[i])[0] for i in indices]
    sizes = [(tensor.shape.num_elements() or 0) * tensor.dtype.size for tensor in tensors]
    buckets = make_buckets(sizes, [tensor.dtype.name for tensor in tensors], bucket_bytes)
    return [[indices[i] for i in bucket.indices] for bucket in buckets]


def joined_lookups(value: Any, shares: Sequence[Share]) -> Lookups:
    """Returns the slices of all local replicas as one object."""
    local = local_values(value)
    if len(local) != len(shares):
        return Lookups((), tuple(local))
    return combine_lookups([Lookups.from_gradient(each, s.dependence) for each, s in zip(local, shares, strict=True)])


def _divided(total: Any, n: int) -> Any:
    if isinstance(total, PerReplica):
        return PerReplica(tuple(_divided(each, n) for each in total.values))
    return tf.cast(total / tf.cast(n, total.dtype), total.dtype)


def _sums_across(
    process_group: ProcessGroup,
    values: Sequence[Any],
    shares: Sequence[Share],
    as_gradients: bool,
    fused: Sequence[FusedReduction],
) -> tuple[list[Any], list[tf.Tensor]]:
    """Returns the sums of the values, and the sums of `fused`."""
    sum_dense = process_group.sum_gradients if as_gradients else process_group.sum
    lookups = {i: joined_lookups(value, shares) for i, value in enumerate(values) if is_sparse(value)}
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
    sums = sum_dense([totals[i] for i in dense], fused_terms)
    for i, total in zip(dense, sums, strict=False):
        totals[i] = total
    for i, own in lookups.items():
        totals[i] = slices_across(process_group, own)
    return totals, sums[len(dense) :]


def _sums_of_devices(
    process_group: ProcessGroup, values: Sequence[Any], shares: Sequence[Share], fused: Sequence[FusedReduction]
) -> tuple[list[Any], list[tf.Tensor]]:
    """Like `_sums_across`, but dense values are reduced between all devices, with per-replica results."""
    dense = [i for i, value in enumerate(values) if not is_sparse(value)]
    terms = [_spread(local_values(values[i]), process_group.devices) for i in dense]
    fused_terms = [_spread(reduction.values, process_group.devices) for reduction in fused]
    sums = process_group.sum_of_devices(terms, fused_terms)
    totals: list[Any] = [None] * len(values)
    for i, total in zip(dense, sums, strict=False):
        totals[i] = PerReplica(tuple(total))
    for i, value in enumerate(values):
        if i not in dense:
            totals[i] = slices_across(process_group, joined_lookups(value, shares))
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
