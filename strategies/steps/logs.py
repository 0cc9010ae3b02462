"""Combines the outputs of a training or test step, such as its logs, into numbers of the whole batch.

Results over all replicas, such as metrics, are such numbers already, and so are values that are the same on all
replicas. The kind of every other value (`batches.row_kinds`) decides how the replicas' values are combined: means are
weighted by rows, sums and counts are added, maxima and minima are taken, and rows are concatenated. A value that cannot
be combined causes a warning, with the line that made it.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.batches.program_lines import line_of
from strategies.batches.row_dependence import RowDependence
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import is_reduced
from strategies.batches.row_warnings import description, is_fault, warn
from strategies.batches.shares import Share
from strategies.collectives.fixed_order import sum_in_order
from strategies.steps.layout import ReplicaLayout, local_values

_FIX = (
    "Compute it from the rows of all replicas, which strategies.gather_rows(x) returns, or return a mean or a sum over "
    "rows"
)
_TOTALS = (Kind.SUM, Kind.COUNT)


def combine_logs(outputs: Any, shares: Sequence[Share], layout: ReplicaLayout) -> Any:
    """Returns the replicas' outputs of a step of Keras' trainer, combined into numbers of the whole batch.

    Args:
        outputs: a nest of values, per replica or one that all local replicas share.
        shares: the shares of the local replicas in the step.
        layout: the replicas.
    """
    flat = tf.nest.flatten(outputs)
    summed: dict[int, tf.Tensor] = {}
    with tf.device(layout.devices[0]):
        for i, (name, leaf) in enumerate(zip(_names(outputs), flat, strict=True)):
            if is_reduced(leaf):
                continue
            local = local_values(leaf)
            if isinstance(local[0], int):
                _warn_if_counted(name, local[0], shares)
            if len(local) != len(shares) or not all(isinstance(value, tf.Tensor) for value in local):
                continue
            kinds = {share.dependence.kind(value) for share, value in zip(shares, local, strict=True)}
            if kinds == {Kind.SAME}:
                number = tf.get_static_value(local[0])
                if number is not None and number.ndim == 0 and _is_number(local[0].dtype):
                    _warn_if_counted(name, number.item(), shares)
                if not local[0].dtype.is_floating:
                    continue
            if _are_rows(kinds, local, shares):
                flat[i] = _laid_end_to_end(local, shares, layout)
            elif kinds in ({Kind.MAX}, {Kind.MIN}) and _is_number(local[0].dtype):
                flat[i] = _extreme(local, shares, layout, next(iter(kinds)))
            elif (part := _part_of_batch(name, local, kinds, shares)) is not None:
                summed[i] = part
        totals = layout.process_group.sum(list(summed.values()))
    for i, total in zip(summed, totals, strict=True):
        flat[i] = total
    return tf.nest.pack_sequence_as(outputs, flat)


def _names(outputs: Any) -> list[str]:
    """Returns for each leaf the key under which the step returned it."""
    if not isinstance(outputs, Mapping):
        return [""] * len(tf.nest.flatten(outputs))
    # tf.nest sorts the keys.
    return [str(key) for key in sorted(outputs) for _ in tf.nest.flatten(outputs[key])]


def _is_number(dtype: tf.DType) -> bool:
    return bool(dtype.is_floating or dtype.is_integer or dtype.is_bool)


def _part_of_batch(
    name: str, local: Sequence[tf.Tensor], kinds: set[Kind], shares: Sequence[Share]
) -> tf.Tensor | None:
    """Returns the local replicas' term of the whole batch's number; None for a value that is not combined."""
    dtype = local[0].dtype
    if kinds <= set(_TOTALS) and not dtype.is_bool and _is_number(dtype):
        return sum_in_order([s.keep(value, tf.zeros_like(value)) for s, value in zip(shares, local, strict=True)])
    if not (dtype.is_floating and kinds <= {Kind.MEAN, Kind.SAME}):
        _warn_uncombined(name, local[0], kinds, shares[0].dependence)
    if not dtype.is_floating:
        return None
    if all(share.is_even for share in shares):
        total = sum_in_order(local)
        return total / tf.cast(shares[0].num_replicas, total.dtype)
    weighed = [
        tf.math.multiply_no_nan(value, tf.cast(share.weight, value.dtype))
        for share, value in zip(shares, local, strict=True)
    ]
    return sum_in_order(weighed)


def _warn_uncombined(name: str, value: tf.Tensor, kinds: set[Kind], dependence: RowDependence) -> None:
    faults = [kind for kind in kinds if is_fault(kind)]
    what = f"is {description(faults[0])}" if faults else "is made by each replica for itself"
    origin = dependence.origin(value, is_fault) if faults else value
    if not dependence.is_first_asked(origin):
        return
    taken = "the mean of the replicas', weighed by rows" if value.dtype.is_floating else "that of one replica"
    warn(
        f"{_subject(name)} {what}, so that under a strategy it is not that of one device: the trainer takes {taken}",
        f"{_FIX}.",
        line_of(origin),
    )


def _warn_if_counted(name: str, value: float, shares: Sequence[Share]) -> None:
    """Warns if a constant may be the number of rows of one replica."""
    if not isinstance(value, bool) and value in shares[0].num_rows and value != 1:
        warn(
            f"{_subject(name)} is {value:g}, the number of rows of one replica: where it was read from the shape of "
            "the batch, it is not that of one device",
            "Return tf.shape(x)[0], which is summed over replicas, or strategies.global_rows(x).",
        )


def _subject(name: str) -> str:
    return f"{name!r}, which a step returns," if name else "What a step returns"


def _are_rows(kinds: set[Kind], local: Sequence[tf.Tensor], shares: Sequence[Share]) -> bool:
    """Returns True if the tensors have one entry for each row, along the first dimension."""
    if kinds != {Kind.ROWS}:
        return False
    return all(
        value.shape.rank and share.dependence.is_one_for_each_row(value)
        for share, value in zip(shares, local, strict=True)
    )


def _laid_end_to_end(local: Sequence[tf.Tensor], shares: Sequence[Share], layout: ReplicaLayout) -> tf.Tensor:
    own = tf.concat([_own_rows(share, value) for share, value in zip(shares, local, strict=True)], 0)
    return layout.process_group.gather(own)


def _own_rows(share: Share, value: tf.Tensor) -> tf.Tensor:
    return value if share.has_rows is True else value[: share.keep(tf.shape(value)[0], 0)]


def _extreme(local: Sequence[tf.Tensor], shares: Sequence[Share], layout: ReplicaLayout, kind: Kind) -> tf.Tensor:
    """Returns the maximum (``Kind.MAX``) or minimum over all replicas that have rows."""
    dtype = local[0].dtype
    numbers = [tf.cast(value, tf.int32) if dtype.is_bool else value for value in local]
    worst = numbers[0].dtype.min if kind is Kind.MAX else numbers[0].dtype.max
    kept = [
        share.keep(value, tf.fill(tf.shape(value), tf.constant(worst, value.dtype)))
        for share, value in zip(shares, numbers, strict=True)
    ]
    every = layout.process_group.gather(tf.stack(kept))
    found = tf.reduce_max(every, 0) if kind is Kind.MAX else tf.reduce_min(every, 0)
    return tf.cast(found, dtype)
