"""State of metrics: replicas hold terms of a sum, which is computed when the metric is read.

A user's own metric adds to its state as on one device. Each replica has to add its term of what one device adds: sums
and counts over its rows unchanged, a mean over its rows weighted by rows, and a value that is the same on all replicas
on the first replica only. Values that are not a sum of such terms, such as a maximum, cause a warning.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.batches import row_warnings, shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_terms import NoTermsError, linear
from strategies.batches.shares import Share
from strategies.steps import state_writes

_SUM, _MEAN = tf.VariableAggregation.SUM, tf.VariableAggregation.MEAN


def term(share: Share, name: str, value: Any, dtype: tf.DType, aggregation: tf.VariableAggregation) -> Any:
    """Returns a replica's term of a value that a program writes into a metric's state; None: the value is the term.

    Args:
        share: the replica's share.
        name: the variable's name, for warnings.
        value: the value that the program assigns or adds.
        dtype: the variable's dtype.
        aggregation: how the variable's components are combined when it is read.
    """
    dependence = shares.current_dependence()
    kind = dependence.kind(value)
    if aggregation == _SUM:
        try:
            return linear(
                dependence,
                value,
                same=lambda part: _of_first(share, name, part, dtype),
                mean=lambda part: _weighed(share, part),
                total=lambda part: part if state_writes.is_state(part) else share.keep(part, tf.zeros_like(part)),
            )
        except NoTermsError:
            pass
    elif aggregation != _MEAN or kind is Kind.SAME or (kind is Kind.MEAN and share.is_even):
        return None
    row_warnings.warn(
        f"{name!r} is set to what a replica computes from its own rows, and the replicas' values are added up when the "
        "metric is read, so that under a strategy it is not that of one device",
        "Add sums or counts over rows to it; or compute it from the rows of all replicas, which "
        "strategies.gather_rows(x) returns.",
    )
    return None


def _of_first(share: Share, name: str, part: Any, dtype: tf.DType) -> tf.Tensor:
    state_writes.warn_of_static_count(share, name, part)
    return share.on_first(tf.convert_to_tensor(part, dtype))


def _weighed(share: Share, mean: tf.Tensor) -> tf.Tensor:
    if not mean.dtype.is_floating:
        raise NoTermsError
    return share.weigh(mean)
