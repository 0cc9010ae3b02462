"""Gradients in a step of Keras' trainer: with respect to weights, ``tape.gradient`` returns those of the global batch.

A step of Keras' trainer is a program for one device. The gradient of its loss with respect to values that are the same
on all replicas (weights, and values computed from weights alone) is the sum over replicas of local gradients. The
target's kind (``row_dependence``) determines a replica's term: the gradient of ``weight_r * m_r`` for a mean over rows
``m_r``, the plain gradient for a sum over rows. Penalties of weights, the same on all replicas, count as means: the
weights of all replicas add up to 1.

The sum is computed in ``tape.gradient`` and ``tf.gradients``, so that whatever the program does with it (clipping,
noise, a norm in the logs, an ``assign_sub``) uses the gradient of the global batch. Gradients with respect to rows, as
of a gradient penalty on inputs, stay with their replica.

In Keras' own ``train_step`` nothing looks at the gradients before the optimizer does. There they stay local, marked as
terms of a sum, and the optimizer sums them (``optimizers``): by reduce-scatter where the optimizer is sharded, once per
update where it accumulates over steps, in one message with the metrics.

All this holds only in steps of Keras' trainer. In a custom loop, TensorFlow's convention holds: the replicas' losses
have to add up.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies._keras_hooks.addresses import BaseOptimizer
from strategies._keras_hooks.split_gradients import (
    as_shard,
    has_split_weights,
    is_variable,
    joined_gradients,
    mark_of_one_replica,
    values_of,
)
from strategies._keras_hooks.summed_gradients import summed
from strategies._keras_hooks.whole_updates import overrides_apply
from strategies._keras_hooks.wrapping import overrides, wrap
from strategies._tf_internals import ReplicaContext, gradient_record
from strategies.batches import shares
from strategies.batches.row_kinds import Form, Kind
from strategies.batches.row_marks import mark, mark_shard
from strategies.batches.row_warnings import is_fault, warn_of, warn_of_shards
from strategies.engine.engine import engine_of
from strategies.replica.overwritten import warn_if_summed
from strategies.replica.pass_context import pass_context
from strategies.replica.rounding import as_unrounded, unrounded
from strategies.sharding.variables import ShardedVariable, is_row_sharded

#: Kinds that are weighted. A scalar that is neither mean nor sum is weighted, too, as the best guess, with a warning.
_AS_MEANS = (Kind.MEAN, Kind.SAME, Kind.DRAWN)
#: Of these kinds, tensors of several numbers are weighted as well: they have no rows any more.
_REDUCED = (Kind.MIXED, Kind.OTHER)

# True while TensorFlow computes a gradient: a gradient taken inside, as for a recomputed layer, is only a factor.
_inside: contextvars.ContextVar[bool] = contextvars.ContextVar("keras_strategies_in_gradient", default=False)


def install() -> None:
    """Wraps TensorFlow's functions that compute gradients: Keras has none of its own on TensorFlow."""
    wrap(tf.GradientTape, "gradient", _gradient)
    wrap(tf.GradientTape, "jacobian", _jacobian)
    wrap(tf.GradientTape, "batch_jacobian", _jacobian)
    wrap(tf, "gradients", _gradients)


def in_keras_step(model: keras.Model) -> contextlib.AbstractContextManager[None]:
    """Context manager: Keras' own train_step runs, so gradients stay local if the model's optimizer sums them."""
    return shares.changed(sums_in_optimizer=_sums_itself(model.optimizer))


def for_optimizer(optimizer: Any, gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns local gradients of a step of the trainer as an optimizer takes them.

    Args:
        optimizer: the optimizer whose ``apply_gradients`` gets them.
        gradients: terms of sums over replicas, or None.
        variables: the variable of each gradient.
    """
    share, engine = shares.current(), engine_of(tf.distribute.get_strategy())
    gradients = as_unrounded(gradients, variables)
    if share is None or engine is None or not share.in_trainer:
        return gradients
    if share.num_replicas == 1:
        mark_of_one_replica(share, gradients, variables)
        return gradients
    if _sums_itself(optimizer):
        return [_as_term(gradient) for gradient in gradients]
    return summed(engine, list(gradients), list(variables))


def _sums_itself(optimizer: Any) -> bool:
    """Returns True if an optimizer sums gradients over replicas before a user's code sees them."""
    return isinstance(optimizer, keras.Optimizer) and not (
        overrides(optimizer, BaseOptimizer, "apply_gradients") or overrides_apply(optimizer)
    )


def _gradient(
    original: Callable[..., Any],
    tape: tf.GradientTape,
    target: Any,
    sources: Any,
    output_gradients: Any = None,
    *args: Any,
    **kwargs: Any,
) -> Any:
    if has_split_weights(sources):
        return joined_gradients(
            sources, lambda own: _gradient(original, tape, target, own, output_gradients, *args, **kwargs)
        )
    if _is_factor():
        return original(tape, target, sources, output_gradients, *args, **kwargs)
    # Determined before: a persistent tape may record again while its gradient is taken.
    stays = _stays_local()

    def take(recorded: Any) -> Any:
        with _taking():
            return original(tape, target, recorded, _upstream(target, output_gradients), *args, **kwargs)

    return _global_gradients(_differentiated(sources, take), target, sources, stays)


def _gradients(original: Callable[..., Any], ys: Any, xs: Any, grad_ys: Any = None, *args: Any, **kwargs: Any) -> Any:
    if has_split_weights(xs):
        return joined_gradients(xs, lambda own: _gradients(original, ys, own, grad_ys, *args, **kwargs))
    if _is_factor():
        return original(ys, xs, grad_ys, *args, **kwargs)

    def take(recorded: Any) -> Any:
        with _taking():
            return original(ys, recorded, _upstream(ys, grad_ys), *args, **kwargs)

    return _global_gradients(_differentiated(xs, take), ys, xs, _stays_local())


def _jacobian(
    original: Callable[..., Any], tape: tf.GradientTape, target: Any, sources: Any, *args: Any, **kwargs: Any
) -> Any:
    """Returns the local Jacobian, marked with the kind of the target: derivatives of a row belong to that row."""
    if _is_factor():
        return original(tape, target, sources, *args, **kwargs)
    with _taking():
        found = original(tape, target, sources, *args, **kwargs)
    share = shares.current()
    if share is not None and share.in_trainer and share.num_replicas > 1:
        kind = share.dependence.kind(target)
        for each in tf.nest.flatten(found):
            mark(each, kind)
    return found


def _is_factor() -> bool:
    """Returns True where a gradient is taken inside of another gradient's backward pass."""
    return _inside.get() or pass_context().is_differentiated


@contextlib.contextmanager
def _taking() -> Iterator[None]:
    token = _inside.set(True)
    try:
        yield
    finally:
        _inside.reset(token)


def _differentiated(sources: Any, take: Callable[[Any], Any]) -> Any:
    """Returns `take(sources)`, and notifies the gathers of sharded weights that a backward pass begins.

    The gradient with respect to a weight that this step has updated is the sum of those of all its reads.

    Args:
        sources: a nest of variables and tensors.
        take: takes the gradients of sources.
    """
    engine = engine_of(tf.distribute.get_strategy())
    if engine is None or engine.sharded_weights is None:
        return take(sources)
    gathers = engine.sharded_weights.gathers
    gathers.pre_backward(is_last=not pass_context().is_differentiated)

    def reads(source: Any) -> list[Any]:
        value = source.value if isinstance(source, keras.Variable) else source
        return gathers.sources(value, source) if isinstance(value, ShardedVariable) else [source]

    flat = tf.nest.flatten(sources)
    recorded = [reads(source) for source in flat]
    if all(read[0] is source for read, source in zip(recorded, flat, strict=True)):
        return take(sources)
    gradients = iter(take([each for read in recorded for each in read]))
    return tf.nest.pack_sequence_as(sources, [_added([next(gradients) for _ in read]) for read in recorded])


def _added(gradients: Sequence[Any]) -> Any:
    """Returns the sum of gradients; None counts as zero."""
    terms = [each for each in gradients if each is not None]
    if len(terms) > 1:
        return tf.add_n([tf.convert_to_tensor(each) for each in terms])
    return terms[0] if terms else None


def _upstream(target: Any, given: Any) -> Any:
    """Returns the output gradients of `target`, in its structure, weighted where it is a mean; None means ones.

    Args:
        target: a nest of tensors.
        given: the program's output gradients, in the structure of `target`, or None.
    """
    share = shares.current()
    if share is None or not share.in_trainer:
        return given
    # A sum over the elements of a shard has the gradient of the whole weight's.
    subject = "The loss of which a gradient is taken here"
    warn_of_shards(target, subject, shares.current_dependence(), right=(Form.ELEMENTS, Form.SUM))
    if share.num_replicas == 1:
        return given
    flat = tf.nest.flatten(target)
    if any(not isinstance(leaf, tf.Tensor) for leaf in flat):
        return given
    kinds = [share.dependence.kind(leaf) for leaf in flat]
    for kind, leaf in zip(kinds, flat, strict=True):
        warn_of(kind, subject, leaf, share.dependence)
    are_means = [
        kind in _AS_MEANS or (is_fault(kind) and (kind in _REDUCED or leaf.shape.rank == 0))
        for kind, leaf in zip(kinds, flat, strict=True)
    ]
    if not any(are_means):
        return given
    factors = [tf.ones_like(leaf) for leaf in flat] if given is None else tf.nest.flatten(given)
    weighed = [
        share.weigh(tf.convert_to_tensor(factor)) if factor is not None and is_mean else factor
        for factor, is_mean in zip(factors, are_means, strict=True)
    ]
    return tf.nest.pack_sequence_as(target, weighed)


def _is_of_batch(share: shares.Share, target: Any) -> bool:
    """Returns True if the replicas' losses add up to the loss of the global batch."""
    return not any(is_fault(share.dependence.kind(leaf)) for leaf in tf.nest.flatten(target))


def _stays_local() -> bool:
    """Returns True where the sum is left to the optimizer, or no collective can run."""
    share = shares.current()
    if share is None or shares.is_in_microbatches():
        return True
    # A gradient taken while a tape records is a part of the loss, not the gradient that Keras' step takes.
    if share.sums_in_optimizer and not gradient_record.could_possibly_record():
        return True
    return not _can_synchronize(share)


def _can_synchronize(share: shares.Share) -> bool:
    """Returns True where the replicas of this process can run one collective together: in the graph of their step."""
    if tf.executing_eagerly() or type(tf.distribute.get_replica_context()) is ReplicaContext:
        return not share.in_inner_function
    return share.is_in_step_graph


def _global_gradients(local: Any, target: Any, sources: Any, stays: bool) -> Any:
    """Returns gradients, summed over replicas where the source is the same on all of them, else local.

    Args:
        local: this replica's gradients, in the structure of `sources`.
        target: the differentiated nest of tensors.
        sources: a nest of variables and tensors.
        stays: whether gradients stay local, and sums are left to the optimizer.
    """
    share, engine = shares.current(), engine_of(tf.distribute.get_strategy())
    if share is None or engine is None:
        return local
    flat, flat_sources = tf.nest.flatten(local, expand_composites=False), tf.nest.flatten(sources)
    if share.num_replicas == 1:
        if not shares.is_in_microbatches():
            mark_of_one_replica(share, flat, flat_sources)
        return local
    for i, source in enumerate(flat_sources):
        if is_variable(source):
            warn_if_summed(flat[i], source, share.dependence)
            flat[i] = unrounded(flat[i], source, share.dependence)
    if not share.in_trainer:
        return tf.nest.pack_sequence_as(sources, flat)
    mine = [i for i, source in enumerate(flat_sources) if flat[i] is not None and _is_alike(share, source)]
    for i, source in enumerate(flat_sources):
        # The gradient of the global batch's loss with respect to rows has rows.
        is_tensor = isinstance(source, tf.Tensor) and isinstance(flat[i], tf.Tensor)
        if is_tensor and share.dependence.kind(source) is Kind.ROWS and _is_of_batch(share, target):
            mark(flat[i], Kind.ROWS)
    if stays:
        for i in mine:
            flat[i] = _as_term(flat[i])
    else:
        # Each replica has gradients of other rows of a row-sharded table: the optimizer sends them to the owners.
        for i in [i for i in mine if is_row_sharded(flat_sources[i])]:
            own_rows = (id(flat_sources[i]), share.replica_id, share.num_replicas)
            mark_shard(values_of(flat[i]), own_rows, Kind.SUM)
            mine.remove(i)
        for i, total in zip(
            mine, summed(engine, [flat[i] for i in mine], [flat_sources[i] for i in mine]), strict=True
        ):
            flat[i] = as_shard(total, flat_sources[i])
    return tf.nest.pack_sequence_as(sources, flat)


def _is_alike(share: shares.Share, source: Any) -> bool:
    """Returns True for a variable, and for a tensor that does not depend on rows."""
    return not isinstance(source, tf.Tensor) or share.dependence.kind(source) is Kind.SAME


def _as_term(gradient: Any) -> Any:
    """Marks a gradient as this replica's term of a sum over replicas; returns it."""
    if gradient is not None:
        mark(values_of(gradient), Kind.SUM)
    return gradient
