"""Reductions in one process: over its devices, by TensorFlow's own cross-device ops."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.batches.shares import Share
from strategies.collectives.fixed_order import sum_in_order
from strategies.op_names.scopes import in_process
from strategies.steps.layout import ReplicaLayout
from strategies.steps.reductions import (
    SUM,
    FusedReduction,
    Reductions,
    in_buckets,
    is_int32,
    is_sparse,
    joined_lookups,
)
from strategies.topology.devices import is_gpu

#: The size of a bucket of gradients that the GPUs of one process sum by NCCL, which is fastest with large messages.
GPU_BUCKET_BYTES = 64 * 2**20

#: Reduces (value, destination) pairs over the devices of one group, in this process. Its arguments are
#: ``(reduce_op, pairs, devices, options)``.
LocalReduction = Callable[[Any, list[tuple[Any, Any]], tuple[str, ...], Any], list[Any]]


class DeviceReductions(Reductions):
    """Computes sums and means over the replicas of a job of one process.

    Args:
        layout: the replicas.
        reduce_locally: reduces dense values over the devices of this process.
    """

    def __init__(self, layout: ReplicaLayout, reduce_locally: LocalReduction) -> None:
        super().__init__(layout)
        self._reduce_locally = reduce_locally

    @property
    def _bucket_bytes(self) -> int:
        return GPU_BUCKET_BYTES

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
        """Returns each value's reduction on all devices of its destination, then the fused sums: see the base class."""
        values = self.terms(values, shares) if reduce_op == SUM else values
        found: list[Any] = [None] * len(values)
        dense: dict[tuple[str, ...], list[int]] = {}
        for i, (value, destination) in enumerate(zip(values, where, strict=True)):
            if reduce_op == SUM and is_sparse(value):
                found[i] = self._joined(value, shares, self._layout.group_of(destination))
            else:
                dense.setdefault(tuple(getattr(destination, "_devices", ())), []).append(i)
        options = options or tf.distribute.experimental.CommunicationOptions()
        for devices, indices in dense.items():
            for packed in _packs(values, indices, devices, as_gradients):
                with in_process("all_reduce", "data"):
                    made = self._reduce_locally(reduce_op, [(values[i], where[i]) for i in packed], devices, options)
                for i, total in zip(packed, made, strict=True):
                    found[i] = total
        return [*found, *(sum_in_order(reduction.values) for reduction in fused)]

    def _joined(self, value: Any, shares: Sequence[Share], group: int) -> Any:
        """Concatenates the slices of the local replicas, on each device of a group.

        Their number depends on the rows of the batch: collectives, which have a fixed shape, cannot send them.
        """
        devices = self._layout.groups[group].devices
        if not any(is_gpu(device) for device in devices):
            with tf.device(devices[0]):
                return self._layout.copied_to(group, joined_lookups(value, shares).joined())
        joined = []
        for device in devices:
            # Each device copies from all others: GPUs copy pairwise, and the first GPU is no bottleneck.
            with tf.device(device):
                joined.append(joined_lookups(value, shares).joined())
        return PerReplica(tuple(joined))


def _packs(
    values: Sequence[Any], indices: Sequence[int], devices: Sequence[str], as_gradients: bool
) -> list[list[int]]:
    """Returns the values that are reduced by one call each, as lists of indices, in the order of the calls.

    TensorFlow's collectives pack all tensors of one call into one message. Gradients are packed in buckets, because one
    message would wait for the last of them; between CPU devices they are added one by one, each when it is ready.
    TensorFlow sums int32 on the host, and refuses calls with other values, including other int32 values.
    """
    alone = [[i] for i in indices if is_int32(values[i])]
    others = [i for i in indices if not is_int32(values[i])]
    if as_gradients and any(is_gpu(device) for device in devices):
        return [*alone, *in_buckets(values, others, GPU_BUCKET_BYTES)]
    return [*alone, others] if others else alone
