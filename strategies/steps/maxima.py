"""Gradients that replace their variable: reduced by the maximum over all replicas.

They are reduced before all other gradients, which are summed, and are the same on all replicas from then on, so that
neither sharding nor accumulation handles them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import Mirrored, PerReplica
from strategies.batches.shares import Share
from strategies.collectives.descriptions import carrying
from strategies.replica.overwritten import is_overwritten, maximum
from strategies.steps.layout import ReplicaLayout, local_values


def with_maxima(
    layout: ReplicaLayout, gradients: Sequence[Any], targets: Sequence[Any] | None, shares: Sequence[Share]
) -> list[Any]:
    """Returns gradients in which those that overwrite their variable are maxima over replicas. All processes call it.

    Args:
        layout: the replicas.
        gradients: for each variable a per-replica tensor, one that is equal on all replicas, or None.
        targets: for each gradient its variable; None if there are no variables.
        shares: the shares of the local replicas in the running step; empty outside a step. Replicas without rows of
            their own are ignored.
    """
    found = list(gradients)
    mine = [i for i, each in enumerate(targets or ()) if is_overwritten(each) and isinstance(found[i], PerReplica)]
    by_group: dict[int, list[int]] = {}
    for i in mine:
        by_group.setdefault(layout.group_of((targets or ())[i]), []).append(i)
    # Sorted: all processes must run the groups' collectives in the same order.
    for k in sorted(by_group):
        group = layout.groups[k]
        with tf.device(group.devices[0]), carrying("the maxima of scales"):
            largest = [maximum(_present(local_values(found[i]), shares)) for i in by_group[k]]
            largest = group.process_group.maximum(largest)
        for i, value in zip(by_group[k], largest, strict=True):
            copied = layout.copied_to(k, value)
            found[i] = Mirrored(tuple(local_values(copied)))
    return found


def _present(values: Sequence[Any], shares: Sequence[Share]) -> list[Any]:
    """Returns the replicas' values of a gradient, with the dtype's lowest number for replicas without rows."""
    if len(values) != len(shares):
        return list(values)
    tensors = [tf.convert_to_tensor(value) for value in values]
    return [
        share.keep(tensor, tf.fill(tf.shape(tensor), tf.constant(tensor.dtype.min, tensor.dtype)))
        for share, tensor in zip(shares, tensors, strict=True)
    ]
