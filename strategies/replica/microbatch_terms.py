"""Marks what a micro-batch computes as a term of the batch: a constant, a mean over rows, or a weighted gradient.

The contract is tested in ``tests/keras_ext/pipeline/test_losses.py`` and ``tests/keras_ext/pipeline/test_parity.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.batches.row_warnings import warn_of


def as_constant(value: Any) -> Any:
    """Marks a tensor as a factor that is independent of the rows' content, such as their number; returns it."""
    return mark(value, Kind.SAME)


def as_mean_over_rows(value: Any) -> Any:
    """Marks a tensor as a mean over this replica's rows, combined from micro-batches; returns it."""
    return mark(value, Kind.MEAN)


def as_weighed(upstream: Any) -> Any:
    """Returns the gradient of a loss, times the weight of this replica's rows in the batch of Keras' trainer."""
    share = shares.current()
    return upstream if share is None or not share.in_trainer else share.weigh(upstream)


def as_mean(loss: Any, rows_share: Any) -> Any:
    """Returns a loss that a layer added in a micro-batch as a term of a mean weighted by rows.

    Args:
        loss: the added loss; a sum over rows is divided by the micro-batch's share of the rows.
        rows_share: the micro-batch's share of this replica's rows; float or float scalar.
    """
    kind = shares.current_dependence().kind(loss)
    warn_of(kind, "A loss that a layer adds")
    if kind is not Kind.SUM:
        return mark(tf.identity(loss), Kind.MEAN)
    return mark(tf.math.divide_no_nan(loss, tf.cast(rows_share, loss.dtype)), Kind.SUM)
