"""Divides a batch among replicas: the share of each local replica, by its number of rows."""

from __future__ import annotations

import functools
from collections.abc import Callable, Collection

import tensorflow as tf

from strategies.batches.row_dependence import RowDependence
from strategies.batches.rows import Rows
from strategies.batches.shares import Combination, Share
from strategies.evenly import even_bounds


def divide(
    rows: Rows | None,
    first_replica: int,
    num_local: int,
    num_replicas: int,
    combination: Combination,
    read_weight: Callable[[int, tf.Graph], tf.Tensor],
    *,
    may_have_shards: bool = False,
) -> list[Share]:
    """Returns every local replica's share.

    Args:
        rows: the rows of the batch, with their total; None where the step's arguments hold no batch: every replica then
            has the same weight.
        first_replica: the index of the first local replica among all replicas.
        num_local: the number of local replicas.
        num_replicas: size of the data axis.
        combination: see :class:`Share`.
        read_weight: takes the local replica's index first; see :class:`Share`.
        may_have_shards: see :class:`RowDependence`.
    """
    even = 1.0 / num_replicas
    weights: list[float | tf.Tensor] = [even] * num_local
    present: list[bool | tf.Tensor] = [True] * num_local
    num_all = None if rows is None else rows.total
    if rows is not None and num_replicas > 1:
        static = [n for n in rows.local if isinstance(n, int)]
        total = rows.total
        if isinstance(total, int) and len(static) == num_local:
            if total:
                weights = [n / total for n in static]
                present = [n > 0 for n in static]
        else:
            total = tf.cast(total, tf.float32)
            weights = [tf.math.divide_no_nan(tf.cast(n, tf.float32), total) for n in rows.local]
            present = [n > 0 if isinstance(n, int) else tf.greater(n, 0) for n in rows.local]
    own: list[Collection[int]] = [()] * num_local if rows is None else [_seen(n) for n in rows.local]
    return [
        Share(
            first_replica + r,
            num_replicas,
            weights[r],
            present[r],
            combination,
            functools.partial(read_weight, r),
            own[r],
            RowDependence(
                own[r],
                is_marked=num_replicas > 1 or may_have_shards,
                num_all=_global_counts(rows, own[r], num_local, num_replicas),
                may_have_shards=may_have_shards,
            ),
            num_all=num_all,
            find_first_row=functools.partial(_first_row, rows, num_all, r, first_replica + r, num_replicas),
        )
        for r in range(num_local)
    ]


def _seen(number: int | tf.Tensor) -> Collection[int]:
    """Returns the number of rows that a replica sees, if known now; 1, the dummy row, where it has none."""
    if isinstance(number, int) or hasattr(number, "numpy"):
        return (max(int(number), 1),)
    return ()


def _global_counts(rows: Rows | None, own: Collection[int], num_local: int, num_replicas: int) -> Collection[int]:
    """Returns the number of rows of all replicas, if known now; assumes equal numbers if only this replica's is."""
    if rows is None or num_replicas == 1:
        return ()
    static = [n for n in rows.local if isinstance(n, int)]
    if isinstance(rows.total, int):
        return (rows.total,)
    if num_local == num_replicas and len(static) == num_local:
        return (sum(static),)
    return tuple(n * num_replicas for n in own)


def _first_row(
    rows: Rows | None, num_all: int | tf.Tensor | None, local: int, replica: int, num_replicas: int
) -> int | tf.Tensor | None:
    if rows is None or num_all is None:
        return None
    if len(rows.local) == num_replicas:
        return sum(rows.local[:local])
    if not rows.is_cut:
        return None
    bound: int | tf.Tensor = even_bounds(num_all, num_replicas, tf.minimum)[replica]
    return bound
