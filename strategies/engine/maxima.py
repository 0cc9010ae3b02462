"""Gradients of variables that are replaced by their gradient: the maximum over all replicas.

They are joined before all others, which are summed, and are the same on all replicas from then on, so that neither
sharding nor accumulation looks at them again.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import Mirrored, PerReplica
from strategies.batches.shares import Share
from strategies.collectives.descriptions import carrying
from strategies.engine.layout import ReplicaLayout, local_values
from strategies.replica.overwritten import is_overwritten, maximum


def with_maxima(
    layout: ReplicaLayout, gradients: Sequence[Any], targets: Sequence[Any] | None, shares: Sequence[Share]
) -> list[Any]:
    """Returns gradients, those of variables that they replace as the maximum over all replicas. All processes call it.

    Args:
        layout: the replicas.
        gradients: per variable a per-replica tensor, one that replicas have alike, or None.
        targets: per gradient its variable; None if they are of none.
        shares: those of the local replicas in the running step; none outside of one. A replica without rows of its own
            counts for nothing.
    """
    found = list(gradients)
    mine = [i for i, each in enumerate(targets or ()) if is_overwritten(each) and isinstance(found[i], PerReplica)]
    by_group: dict[int, list[int]] = {}
    for i in mine:
        by_group.setdefault(layout.group_of((targets or ())[i]), []).append(i)
    # In an order that all processes have.
    for k in sorted(by_group):
        group = layout.groups[k]
        with tf.device(group.devices[0]), carrying("the maxima of scales"):
            largest = [maximum(_present(local_values(found[i]), shares)) for i in by_group[k]]
            if group.process_group is not None:
                largest = group.process_group.maximum(largest)
        for i, value in zip(by_group[k], largest, strict=True):
            copied = layout.copied_to(k, value)
            found[i] = Mirrored(tuple(local_values(copied)))
    return found


def _present(values: Sequence[Any], shares: Sequence[Share]) -> list[Any]:
    """Returns what replicas have of a gradient, the least of all numbers from those without rows."""
    if len(values) != len(shares):
        return list(values)
    kept = []
    for value, share in zip(values, shares, strict=True):
        tensor = tf.convert_to_tensor(value)
        none = tf.constant(tensor.dtype.min, tensor.dtype)
        kept.append(tensor if share.has_rows is True else tf.where(share.has_rows, tensor, none))
    return kept
