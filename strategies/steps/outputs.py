"""Combines the outputs of replicas, weighted by rows, for callers that combine them further in different ways."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.batches.row_marks import is_reduced
from strategies.batches.row_warnings import warn_of_mixed_rows, warn_of_shards
from strategies.batches.rows import is_batch, is_tensor, take_rows
from strategies.batches.shares import Share
from strategies.steps.layout import ReplicaLayout, local_values
from strategies.steps.logs import combine_logs


def combined(outputs: Any, shares: Sequence[Share], layout: ReplicaLayout) -> Any:
    """Returns the local replicas' outputs, combined as far as the caller does not.

    * Training or test step: Keras' trainer wants the numbers of the whole batch (`steps.logs`).
    * Prediction step: Keras concatenates the replicas' rows. A replica without rows returns none, for any kind of
      tensor; other processes' rows are gathered.
    * Custom loop: a replica without rows returns no rows where its output has the dummy row's, so that gathering skips
      it, and zeros elsewhere, so that summing does.

    Args:
        outputs: a nest of values, per replica or one that all local replicas share.
        shares: the shares of the local replicas in the step.
        layout: the replicas.

    Raises:
        ValueError: if rows to be gathered from other processes are not dense tensors.
    """
    combination = shares[0].combination
    if combination == "concat" and layout.num_replicas > 1:
        share = shares[0]
        warn_of_mixed_rows(tf.nest.map_structure(_first, outputs), share.dependence, "What a model predicts for a row")
    if combination == "mean":
        local = tf.nest.map_structure(_first, outputs)
        warn_of_shards(local, "What a step returns", shares[0].dependence)
        return combine_logs(outputs, shares, layout) if layout.num_replicas > 1 else outputs
    if not all(share.has_rows is True and share.is_even for share in shares):
        outputs = tf.nest.map_structure(lambda leaf: _without_dummy_rows(leaf, shares), outputs)
    if combination == "concat" and layout.num_processes > 1:
        return tf.nest.map_structure(lambda leaf: _rows_of_all_processes(leaf, layout), outputs)
    return outputs


def _first(leaf: Any) -> Any:
    return local_values(leaf)[0]


def _rows_of_all_processes(value: Any, layout: ReplicaLayout) -> Any:
    local = local_values(value)
    if not all(isinstance(v, tf.Tensor) for v in local):
        raise ValueError(
            "Across processes, predict gathers dense tensors only. Make the model's outputs dense, for instance "
            f"with to_tensor(). Received: {value}"
        )
    local = [tf.reshape(v, [1]) if v.shape.rank == 0 else v for v in local]
    return layout.process_group.gather(tf.concat(local, 0) if len(local) > 1 else local[0])


def _without_dummy_rows(leaf: Any, shares: Sequence[Share]) -> Any:
    local = local_values(leaf)
    if len(local) != len(shares) or (len(shares) > 1 and not isinstance(leaf, PerReplica)):
        return leaf
    own = tuple(_counting_rows(share, value) for share, value in zip(shares, local, strict=True))
    return PerReplica(own) if isinstance(leaf, PerReplica) else own[0]


def _counting_rows(share: Share, value: Any) -> Any:
    if share.has_rows is True or not is_tensor(value) or is_reduced(value):
        return value
    nothing = _no_rows if share.combination == "concat" else _neutral
    if share.has_rows is False:
        return nothing(value)
    if share.combination is None and value.shape.rank and value.shape[0] is not None:
        # The first dimension is static where that of the batch is not: it does not count rows.
        return share.keep(value, tf.zeros_like(value))
    with tf.device(getattr(value, "device", None)):
        return tf.cond(share.has_rows, lambda: value, lambda: nothing(value))


def _no_rows(value: Any) -> Any:
    return take_rows(value, 0, 0) if is_batch(value) else value


def _neutral(value: Any) -> Any:
    if not isinstance(value, tf.Tensor):
        return take_rows(value, 0, 0)
    blank = value if value.dtype == tf.string else tf.zeros_like(value)
    if value.shape.rank == 0:
        return blank
    rows = tf.shape(value)[0]
    return blank[: tf.where(tf.equal(rows, 1), 0, rows)]
