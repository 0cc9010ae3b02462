"""``Mean`` and ``Sum`` trackers in steps of Keras' trainer: they get the same numbers as on one device.

A tracker's state is summed over all replicas. Values with a number for each row add up correctly. For a single number
per batch, such as a loss or a count, each replica has its own value. Depending on its kind (``row_dependence``), it is
weighted by rows or added up; a number that is neither a mean nor a sum over rows is a finding.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

from strategies._keras_hooks.addresses import reduction_metrics
from strategies._keras_hooks.wrapping import wrap
from strategies.batches import shares
from strategies.batches.program_lines import line_of
from strategies.batches.row_kinds import Kind
from strategies.batches.row_warnings import description, is_fault, warn, warn_of_shards

_FIX = (
    "Give it a number for each row, a mean or a sum over rows, or what is computed from the rows of all replicas, "
    "which strategies.gather_rows(x) returns"
)
_PER_ROW = (Kind.ROWS, Kind.SOME, Kind.ROWS_PER_COUNT)
_TOTALS = (Kind.SUM, Kind.COUNT)


def install() -> None:
    """Wraps the updates of the two metrics."""
    wrap(reduction_metrics.Mean, "update_state", _update_mean)
    wrap(reduction_metrics.Sum, "update_state", _update_sum)


def _update_mean(
    original: Callable[..., None], metric: keras.metrics.Mean, values: Any, sample_weight: Any = None
) -> None:
    share = _tracker_share(metric, values)
    if share is None:
        return original(metric, values, sample_weight)
    if shares.is_in_microbatches():
        # A pipeline gives means over the rows of its replica, combined from micro-batches.
        is_plain = sample_weight is None and _rank(values) == 0
        return original(metric, values, _votes(share) if is_plain and not share.is_even else sample_weight)
    kind = share.dependence.kind(values)
    if kind in _PER_ROW and _rank(values):
        return original(metric, values, sample_weight)
    _warn_if_faulty(metric, values, kind, share)
    if sample_weight is not None:
        weights = share.dependence.kind(sample_weight)
        if _counts_rows(sample_weight, weights, share):
            # Keras passes a plain int together with its own losses, which are means already.
            return original(metric, values if isinstance(sample_weight, int) else share.as_mean(values), sample_weight)
        if weights is not Kind.SAME or _rank(sample_weight):
            # Keras' own metrics pass weights for each row.
            if _rank(values) == 0 and kind in (Kind.MEAN, *_TOTALS):
                _warn(metric, "is weighed by something else than the number of rows", sample_weight)
            return original(metric, values, sample_weight)
    values = share.as_mean(values)
    if share.is_even:
        return original(metric, values, sample_weight)
    votes = _votes(share)
    return original(metric, values, votes if sample_weight is None else votes * tf.cast(sample_weight, votes.dtype))


def _votes(share: shares.Share) -> tf.Tensor:
    """Returns the weight of a replica's number, scaled so that an even share of the rows has weight 1."""
    return share.weigh(tf.constant(float(share.num_replicas)))


def _update_sum(
    original: Callable[..., None], metric: keras.metrics.Sum, values: Any, sample_weight: Any = None
) -> None:
    share = _tracker_share(metric, values)
    if share is None or shares.is_in_microbatches():
        return original(metric, values, sample_weight)
    kind = share.dependence.kind(values)
    if (kind in _PER_ROW and _rank(values)) or kind in _TOTALS:
        return original(metric, values, sample_weight)
    if share.dependence.kind(sample_weight) is not Kind.SAME and not is_fault(kind):
        return original(metric, values, sample_weight)
    _warn_if_faulty(metric, values, kind, share)
    return original(metric, share.weigh(tf.cast(values, metric.dtype)), sample_weight)


def _tracker_share(metric: keras.Metric, values: Any) -> shares.Share | None:
    """Returns the replica's share in a step of Keras' trainer on several replicas, else None."""
    share = shares.current()
    if share is None or not share.in_trainer:
        return None
    subject = f"A number that the tracker {metric.name!r} is given for a batch"
    warn_of_shards(values, subject, shares.current_dependence())
    return share if share.num_replicas > 1 else None


def _rank(value: Any) -> int:
    return len(value.shape) if hasattr(value, "shape") else int(np.ndim(value))


def _counts_rows(weight: Any, kind: Kind, share: shares.Share) -> bool:
    """Returns True if `weight` is the replica's number of rows: Keras passes a plain int if it is static."""
    return kind is Kind.COUNT or (isinstance(weight, int) and weight in share.num_rows)


def _warn_if_faulty(metric: keras.Metric, values: Any, kind: Kind, share: shares.Share) -> None:
    if is_fault(kind) or kind in (Kind.DRAWN, Kind.PAIRS, Kind.SHIFTED):
        what = f"is {description(kind)}" if is_fault(kind) else "is made by each replica for itself"
        origin = share.dependence.origin(values, is_fault if is_fault(kind) else lambda other: other is kind)
        if share.dependence.is_first_asked(origin):
            _warn(metric, what, origin)
    elif isinstance(values, int) and not isinstance(values, bool) and values in share.num_rows and values != 1:
        what = f"is {values}, the number of rows of one replica, if it was read from the shape of the batch"
        _warn(metric, what, None)


def _warn(metric: keras.Metric, what: str, value: Any) -> None:
    warn(
        f"A number that the tracker {metric.name!r} is given for a batch {what}, so that under a strategy it is not "
        "that of one device: it is put together from one number of each replica, weighed by rows",
        f"{_FIX}; the number of rows is tf.shape(x)[0], or strategies.global_rows(x).",
        line_of(value) if isinstance(value, tf.Tensor) else None,
    )
