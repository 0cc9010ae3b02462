"""Computes loss and metric functions that look at several rows at a time from the rows of all replicas.

F1, a root of a mean, a contrastive loss or a Dice loss is not a mean over rows, and cannot be combined from values of
replicas. The kind of the function's result (``row_dependence``) shows this. Such a function is computed a second time,
from the gathered labels, outputs and weights (``steps.row_gathers``), identically on every replica; TensorFlow prunes
the first computation. From then on it is only computed from gathered rows. Keras' own functions are not checked, except
for the few that look at the whole batch.

All this applies only in steps of Keras' trainer.
"""

from __future__ import annotations

import contextlib
import contextvars
import inspect
import logging
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.addresses import keras_loss, reduction_metrics
from strategies._keras_hooks.wrapping import wrap
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.batches.row_warnings import is_fault, warn
from strategies.engine.engine import engine_of
from strategies.replica.deferred import in_shapes_only
from strategies.replica.joinable import check_needs_no_others
from strategies.steps.row_gathers import gather_rows

_logger = logging.getLogger(__name__)

#: Keras' own functions that look at all rows. Its others are sums or means over rows, or have a value for each row.
_OF_THE_BATCH = frozenset({"circle", "dice", "tversky"})
#: Tensor metadata of outputs that losses and metrics read.
_METADATA = ("_keras_mask", "_keras_logits")

# Losses and metrics that are computed from all rows.
_gathering: weakref.WeakSet[Any] = weakref.WeakSet()
# "ask": a value that looks at several rows raises `_LooksAtSeveralRowsError`. "warned": a warning has been given.
# "gathered": the rows are those of all replicas.
_state: contextvars.ContextVar[str | None] = contextvars.ContextVar("keras_strategies_gathered_functions", default=None)


class _LooksAtSeveralRowsError(Exception):
    """Aborts the computation of a function from a replica's own rows."""


def install() -> None:
    """Wraps the callers of loss functions and metric functions."""
    wrap(keras_loss.Loss, "__call__", _call_loss)
    wrap(reduction_metrics.MeanMetricWrapper, "update_state", _update_metric)


def check_loss(share: shares.Share, values: tf.Tensor, value: tf.Tensor, is_mean: bool) -> bool:
    """Checks whether the values of a loss function look at several rows, before they are taken as a replica's.

    Args:
        share: the share of the replica.
        values: one number, or numbers for each row.
        value: the loss that is reduced from them.
        is_mean: whether `value` is the plain mean of `values`.

    Returns:
        whether a warning about this loss has been given already.

    Raises:
        _LooksAtSeveralRowsError: they do, and the caller has to gather rows.
    """
    if _state.get() == "ask":
        dependence = shares.current_dependence()
        kind = dependence.kind(values)
        if is_fault(dependence.kind(value)) if not len(values.shape) else not _is_per_row(kind, is_mean):
            raise _LooksAtSeveralRowsError
    return _state.get() == "warned"


def has_all_rows() -> bool:
    """Returns True while a loss is computed from the rows of all replicas."""
    return _state.get() == "gathered"


def _is_per_row(kind: Kind, is_mean: bool) -> bool:
    return kind.name in ("ROWS", "SAME", "SOME") or (kind is Kind.MEAN and is_mean)


def _call_loss(
    original: Callable[..., Any], loss: keras.losses.Loss, y_true: Any, y_pred: Any, sample_weight: Any = None
) -> Any:
    share = _share_of(getattr(loss, "fn", loss))
    if share is None or loss.reduction in (None, "none"):
        return original(loss, y_true, y_pred, sample_weight)
    if _remembered(loss) not in _gathering:
        with contextlib.suppress(_LooksAtSeveralRowsError), _in_state("ask"):
            return original(loss, y_true, y_pred, sample_weight)
    given = (y_true, y_pred, sample_weight)
    if not _may_gather(share, given, "loss", getattr(loss, "fn", loss)):
        with _in_state("warned"):
            return original(loss, y_true, y_pred, sample_weight)
    gathered = _gathered(given, "loss", _remembered(loss), getattr(loss, "fn", loss))
    with shares.none(), _in_state("gathered"):
        value = original(loss, *gathered)
    return mark(tf.identity(value), Kind.SAME)


def _update_metric(
    original: Callable[..., None],
    metric: keras.metrics.MeanMetricWrapper,
    y_true: Any,
    y_pred: Any,
    sample_weight: Any = None,
) -> None:
    share = _share_of(metric._fn)
    if share is None:
        return original(metric, y_true, y_pred, sample_weight)
    given = (y_true, y_pred, sample_weight)
    if metric not in _gathering:
        values = metric._fn(y_true, y_pred, **metric._fn_kwargs)
        kind = share.dependence.kind(values)
        if not is_fault(kind) if not len(values.shape) else _is_per_row(kind, is_mean=False):
            return _update(metric, values, y_pred, sample_weight)
        if not _may_gather(share, given, "metric", metric._fn):
            return _update(metric, values, y_pred, sample_weight)
    y_true, y_pred, sample_weight = _gathered(given, "metric", metric, metric._fn)
    with shares.none():
        values = tf.convert_to_tensor(metric._fn(y_true, y_pred, **metric._fn_kwargs))
    # Every replica has the global value, so each adds it weighted by its part of the rows: the parts add up to 1.
    part = mark(tf.identity(share.weigh(tf.constant(1.0))), Kind.SUM)
    mask = getattr(y_pred, "_keras_mask", None)
    sample_weight = keras_loss.apply_mask(sample_weight, mask, dtype=metric.dtype, reduction="sum")
    if sample_weight is None:
        sample_weight = tf.ones(tf.shape(values)[:1]) if len(values.shape) else tf.ones([])
    sample_weight = tf.convert_to_tensor(sample_weight)
    reduction_metrics.Mean.update_state(metric, values, sample_weight * tf.cast(part, sample_weight.dtype))
    return None


def _update(metric: keras.metrics.MeanMetricWrapper, values: Any, y_pred: Any, sample_weight: Any) -> None:
    """Updates a metric as Keras does, with values that are computed already."""
    mask = getattr(y_pred, "_keras_mask", None)
    sample_weight = keras_loss.apply_mask(sample_weight, mask, dtype=metric.dtype, reduction="sum")
    reduction_metrics.Mean.update_state(metric, values, sample_weight)


def _remembered(loss: keras.losses.Loss) -> Any:
    """Returns the key of a loss in `_gathering`, equal for its copies: pipelines compute with copies of losses."""
    function = getattr(loss, "fn", None)
    if function is None:
        return type(loss)
    return function if inspect.isfunction(function) else loss


def _share_of(function: Any) -> shares.Share | None:
    """Returns the replica's share if the function has to be checked for looking at several rows, else None."""
    share = shares.current()
    if share is None or not share.in_trainer or in_shapes_only() or _state.get() is not None:
        return None
    if share.num_replicas == 1 and shares.num_microbatches() == 1:
        return None
    is_keras_own = str(getattr(function, "__module__", "")).startswith("keras.src.")
    return None if is_keras_own and _name(function) not in _OF_THE_BATCH else share


def _name(function: Any) -> str:
    return str(getattr(function, "__name__", type(function).__name__))


@contextlib.contextmanager
def _in_state(state: str) -> Iterator[None]:
    token = _state.set(state)
    try:
        yield
    finally:
        _state.reset(token)


def _may_gather(share: shares.Share, given: Any, role: str, function: Any) -> bool:
    """Returns True if the rows of all replicas can be gathered here; else warns why not."""
    leaves = [leaf for leaf in tf.nest.flatten(given) if leaf is not None]
    check_needs_no_others()
    number = shares.num_microbatches()
    if number > 1:
        where = f"each replica computes it from each of {number} micro-batches"
        fix = (
            "Give the pipeline schedule='gpipe', which has all micro-batches before the first backward pass, or "
            "num_microbatches=1: the function then gets the rows of all replicas together."
        )
    elif not share.is_in_step_graph:
        where = "each replica computes it from its own rows, in a function inside of the step"
        fix = (
            "Call it in the step itself, outside of that tf.function or branch; then it gets the rows of all replicas."
        )
    elif not all(isinstance(leaf, tf.Tensor) or hasattr(leaf, "__array__") or _is_number(leaf) for leaf in leaves):
        where = "each replica computes it from its own rows, as rows that are not dense are not gathered"
        fix = "Make labels and outputs dense, for instance with to_tensor()."
    else:
        return True
    warn(
        f"The {role} function {_name(function)!r} looks at several rows at a time, so that under a strategy it is not "
        f"that of one device: {where}",
        fix,
    )
    return False


def _is_number(value: Any) -> bool:
    return isinstance(value, (int, float))


def _gathered(given: Any, role: str, owner: Any, function: Any) -> Any:
    """Gathers labels, outputs and weights from all replicas, with the masks and logits of outputs."""
    leaves = tf.nest.flatten(given)
    metadata = [getattr(leaf, name, None) for leaf in leaves for name in _METADATA]
    rows = [leaf if leaf is None or _is_number(leaf) else tf.convert_to_tensor(leaf) for leaf in (*leaves, *metadata)]
    indices = [i for i, leaf in enumerate(rows) if tf.is_tensor(leaf) and leaf.shape.rank != 0]
    own = [rows[i] for i in indices]
    if owner not in _gathering:
        _gathering.add(owner)
        _log_bytes(role, function, own)
    for i, every in zip(indices, gather_rows(own), strict=True):
        rows[i] = every
    found = rows[: len(leaves)]
    for i, value in enumerate(rows[len(leaves) :]):
        if value is not None:
            setattr(found[i // len(_METADATA)], _METADATA[i % len(_METADATA)], value)
    return tf.nest.pack_sequence_as(given, found)


def _log_bytes(role: str, function: Any, own: list[tf.Tensor]) -> None:
    """Logs on rank 0 how many bytes are gathered for a function."""
    engine = engine_of(tf.distribute.get_strategy())
    if engine is None or not engine.should_checkpoint:
        return
    sizes = [tf.TensorShape(each.shape[1:]).num_elements() for each in own]
    size = "rows of unknown size"
    if None not in sizes:
        number = sum((count or 0) * each.dtype.size for count, each in zip(sizes, own, strict=True))
        size = f"{number} bytes for each row of the batch"
    _logger.info(
        "The %s function %r looks at several rows at a time: every step computes it from the rows of all replicas, and "
        "gathers %s for it.",
        role,
        _name(function),
        size,
    )
