"""Terms that micro-batches contribute to the numbers of the batch, and warnings where they cannot.

A term is marked as what it is: a constant, a mean over rows, or a weighted gradient. Tested in
``tests/keras_ext/pipeline/test_losses.py``, ``test_parity.py`` and ``test_microbatch_warnings.py``.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.batches.row_warnings import description, is_fault, warn, warn_of_mixed_rows

_LOSS = (
    "A loss that a layer adds is {what}, so that in a pipeline it is not that of one device: each micro-batch of a "
    "replica computes it from its own rows, and training takes the mean over micro-batches, weighted by rows"
)
_LOSS_FIX = (
    "Use num_microbatches=1; or write it as a mean, or as a sum, over rows. The loss that balances a mixture of "
    "experts is no mean over rows: over micro-batches it balances each of them by itself."
)
_LOOKS_ACROSS = (
    "looks at several rows of the batch, so that in a pipeline it is not that of one device: each micro-batch of a "
    "replica looks at its own rows"
)
_ROWS_FIX = "Use num_microbatches=1, or a layer that computes each row by itself."


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
    if is_fault(kind):
        warn(_LOSS.format(what=description(kind)), _LOSS_FIX)
    if kind is not Kind.SUM:
        return mark(tf.identity(loss), Kind.MEAN)
    return mark(tf.math.divide_no_nan(loss, tf.cast(rows_share, loss.dtype)), Kind.SUM)


def warn_of_mixed_microbatches(outputs: Any, stage: int) -> None:
    """Warns if rows that a stage computes for one of several micro-batches depend on other rows of it.

    Args:
        outputs: the stage's outputs, a nest of tensors.
        stage: the stage's number.
    """
    if shares.num_microbatches() == 1:
        return
    dependence = shares.current_dependence()
    subject = f"What stage {stage} of a pipeline computes for a row"
    if warn_of_mixed_rows(outputs, dependence, subject, (_LOOKS_ACROSS, _ROWS_FIX)):
        # Later stages and the loss would warn of the same rows.
        dependence.take_as_rows(outputs)
