"""Clips gradients by the norms of whole weights, or by the norm over all weights of the model.

A process may own only some shards of a weight, and some weights of the model. The sums of squares are then summed over
processes: those of all split weights in one message, or one number for the whole model.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any, TypeAlias

import keras
import tensorflow as tf

from strategies._keras_hooks.optimizer_updates import OptimizerUpdate
from strategies._keras_hooks.owned_variables import sum_over_owners
from strategies.collectives.process_group import ProcessGroup
from strategies.engine.engine import Engine
from strategies.replica.owners import is_first_owner
from strategies.replica.splitting import SplitWeight
from strategies.replica.weight_slices import WeightSlice
from strategies.replica.whole_weights import joined, whole_of

Gradient: TypeAlias = tf.Tensor | tf.IndexedSlices


def clipped(
    update: OptimizerUpdate, clip: Callable[[list[Gradient]], list[Gradient]], grads: list[Gradient]
) -> list[Gradient]:
    """Returns an optimizer's gradients, clipped.

    Args:
        update: the optimizer's update, which knows the variables of the gradients.
        clip: Keras' clipping.
        grads: the gradients.
    """
    optimizer, variables = update.optimizer, update.clipped
    update.clipped = ()
    parts, total = update.engine.spanning_parts, sum_over_owners(update.engine)
    known = len(variables) == len(grads)
    if total is not None and known and optimizer.global_clipnorm and optimizer.global_clipnorm > 0:
        pairs = zip(grads, variables, strict=True)
        own = grads if parts is None else [g for g, variable in pairs if is_first_owner(parts, _weight(variable))]
        return _clipped_together(optimizer, grads, own, total)
    result = clip(grads)
    if not optimizer.clipnorm or optimizer.clipnorm < 0 or not known:
        return result
    weights = [whole_of(variable) for variable in variables]
    held = list(dict.fromkeys(weight for weight in weights if weight is not None))
    squares = {}
    for weight in held:
        own = [i for i, other in enumerate(weights) if other is weight]
        counted = own
        if parts is not None:
            counted = [i for i in own if is_first_owner(parts, _weight(variables[i]), ("tensor",))]
        squares[weight] = _sum_of_squares([grads[i] for i in counted], _dtype(optimizer))
    groups = [_processes_with_slices(update.engine), None if parts is None else parts.groups.model.get("tensor")]
    for group in groups:
        if group is not None:
            squares = _summed_over(group, optimizer, squares)
    for weight in held:
        norm = tf.sqrt(squares[weight])
        scale = optimizer.clipnorm / tf.maximum(norm, optimizer.clipnorm)
        for i, other in enumerate(weights):
            if other is weight:
                result[i] = _scaled(grads[i], scale)
    return result


def _weight(variable: Any) -> Any:
    """Returns the variable to which a slice belongs; any other variable unchanged."""
    return variable.variable if isinstance(variable, WeightSlice) else variable


def _processes_with_slices(engine: Engine) -> ProcessGroup | None:
    """Returns the group of processes over which updates are sharded; None if they are not."""
    sharded = engine.sharded_updates
    return sharded.process_group if sharded is not None and sharded.spans_processes else None


def _clipped_together(
    optimizer: keras.Optimizer,
    grads: list[Gradient],
    own: Sequence[Gradient],
    total: Callable[[tf.Tensor], tf.Tensor],
) -> list[Gradient]:
    """Clips by the norm over all weights of the model; this process contributes the squares of `own`."""
    norm = tf.sqrt(total(_sum_of_squares(own, _dtype(optimizer))))
    limit = optimizer.global_clipnorm
    # As in Keras: infinite norms make NaNs.
    scale = limit * tf.minimum(1.0 / norm, 1.0 / limit) + (norm - norm)
    # As in Keras, IndexedSlices become a tensor: optimizers then get the sum of a row's slices, not each slice.
    return [_scaled(_dense(gradient), scale) for gradient in grads]


def _summed_over(
    group: ProcessGroup, optimizer: keras.Optimizer, squares: dict[SplitWeight, tf.Tensor]
) -> dict[SplitWeight, tf.Tensor]:
    """Returns the sums of squares over the group, for all split weights: the processes may own different shards."""
    every = [each for each in joined(optimizer._trainable_variables) if isinstance(each, SplitWeight)]
    if not every:
        return squares
    zero = tf.zeros([], _dtype(optimizer))
    [totals] = group.sum([tf.stack([squares.get(weight, zero) for weight in every])])
    return dict(zip(every, tf.unstack(totals), strict=True))


def _dtype(optimizer: keras.Optimizer) -> tf.DType:
    """Returns the dtype of norms, equal on all processes."""
    dtypes = [tf.as_dtype(variable.dtype) for variable in optimizer._trainable_variables]
    return tf.float64 if tf.float64 in dtypes else tf.float32


def _sum_of_squares(gradients: Sequence[Gradient], dtype: tf.DType) -> tf.Tensor:
    squares = []
    for gradient in gradients:
        with tf.device(_values(gradient).device):
            squares.append(tf.cast(tf.reduce_sum(tf.square(_values(gradient))), dtype))
    return tf.add_n(squares) if squares else tf.zeros([], dtype)


def _values(gradient: Gradient) -> tf.Tensor:
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient


def _dense(gradient: Gradient) -> tf.Tensor:
    with tf.device(_values(gradient).device):
        return tf.convert_to_tensor(gradient)


def _scaled(gradient: Gradient, scale: tf.Tensor) -> Gradient:
    values = _values(gradient)
    with tf.device(values.device):
        scaled = values * tf.cast(scale, values.dtype)
    if isinstance(gradient, tf.IndexedSlices):
        return tf.IndexedSlices(scaled, gradient.indices, gradient.dense_shape)
    return scaled
