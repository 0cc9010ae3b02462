"""Sums of gradients over all replicas, in a replica's part of a step: differentiable, and marked as global."""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.applied_gradients import as_terms
from strategies._tf_internals import gradient_record
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.engine.engine import Engine, engine_of
from strategies.replica.overwritten import is_overwritten
from strategies.sharding.variables import is_row_sharded

#: For each thread, the ids of the variables whose gradients are sums, while a program's optimizer works on them.
_known = threading.local()


@contextlib.contextmanager
def sums_of_terms(gradients: Sequence[Any], variables: Sequence[Any]) -> Iterator[list[tuple[Any, Any]]]:
    """Context manager: :func:`terms_of` takes the gradients that it gives, however changed, for global ones.

    Args:
        gradients: gradients that a replica passes to an optimizer whose class works on all of them.
        variables: the variable of each gradient.

    Returns:
        Pairs of gradients and variables, with sums over all replicas in place of terms.
    """
    found, stay = _sum_terms(gradients, variables)
    before = _known.__dict__.get("variables")
    _known.variables = {id(v) for v, stays in zip(variables, stay, strict=True) if not stays}
    try:
        yield list(zip(found, variables, strict=True))
    finally:
        _known.variables = before


def terms_of(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """Returns what `as_terms` does; in a block of :func:`sums_of_terms` outside of the trainer, its sums are global."""
    known, share = _known.__dict__.get("variables"), shares.current()
    if known is None or (share is not None and share.in_trainer):
        return as_terms(gradients, variables)
    return list(gradients), [id(variable) in known for variable in variables]


def _sum_terms(gradients: Sequence[Any], variables: Sequence[Any]) -> tuple[list[Any], list[bool]]:
    """Returns gradients with sums over all replicas in place of terms, and for each whether it is still a term.

    Gradients of row-sharded tables, and those that overwrite their variable, stay terms: the optimizer combines them.

    Args:
        gradients: a replica's gradients.
        variables: the variable of each gradient.
    """
    share, engine = shares.current(), engine_of(tf.distribute.get_strategy())
    found, are_global = as_terms(gradients, variables)
    if share is None or engine is None or share.num_replicas == 1:
        return found, [True] * len(found)
    stay = [is_row_sharded(v) or is_overwritten(v) for v in variables]
    mine = [i for i, gradient in enumerate(found) if gradient is not None and not (are_global[i] or stay[i])]
    totals = summed(engine, [found[i] for i in mine], [variables[i] for i in mine])
    for i, total in zip(mine, totals, strict=True):
        found[i] = total
    return found, stay


def summed(engine: Engine, gradients: list[Any], sources: Sequence[Any]) -> list[Any]:
    """Returns differentiable sums of gradients over all replicas; None stays None."""
    mine = [i for i, gradient in enumerate(gradients) if gradient is not None]
    if not mine:
        return gradients
    targets = [sources[i].value if isinstance(sources[i], keras.Variable) else sources[i] for i in mine]
    own = [gradients[i] for i in mine]
    if gradient_record.could_possibly_record() and not any(map(is_overwritten, targets)):
        # As tensors: a tape does not record IndexedSlices.
        totals = _recorded(engine, [tf.convert_to_tensor(each) for each in own], targets)
    else:
        totals = _sums(engine, own, targets)
    found = list(gradients)
    for i, total in zip(mine, totals, strict=True):
        found[i] = total
    return found


def _sums(engine: Engine, gradients: Sequence[Any], targets: Sequence[Any]) -> list[Any]:
    """Sums gradients over all replicas."""

    def across(_: tf.distribute.Strategy, gradients: list[Any]) -> list[Any]:
        return engine.sum_gradients(gradients, targets)

    totals: list[Any] = tf.distribute.get_replica_context().merge_call(across, args=(list(gradients),))
    for total in totals:
        for each in (total.values, total.indices) if isinstance(total, tf.IndexedSlices) else (total,):
            mark(each, Kind.SAME)
    return list(totals)


def _recorded(engine: Engine, gradients: Sequence[tf.Tensor], targets: Sequence[Any]) -> list[Any]:
    """Sums gradients as :func:`_sums` does; the sum's gradient is the sum of all replicas' upstream gradients.

    ``tf.custom_gradient`` is not used: it would look for variables in the whole graph, which other replicas have made.
    """
    with gradient_record.stop_recording():
        totals = _sums(engine, gradients, targets)

    def backward(*upstream: tf.Tensor) -> list[Any]:
        return _recorded(engine, upstream, targets)

    gradient_record.record_operation("SumOverReplicas", totals, list(gradients), backward)
    return totals
