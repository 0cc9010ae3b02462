"""Gradients of split layers: with respect to a whole weight, such as `layer.kernel`, and marks of those of shards.

On one device `layer.kernel` is a variable. In a split layer it is a `SplitWeight`, which no tape knows: its gradient is
joined from those of the shards. See `batches.row_shards` for what the marks are for.

The contract is tested in ``tests/strategies/_keras_hooks/test_numbers_of_shards.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import keras
import tensorflow as tf

from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark, mark_shard
from strategies.batches.shares import Share
from strategies.replica.splitting import SplitWeight, shard_of


def has_split_weights(sources: Any) -> bool:
    """Returns True if a nest of sources contains a weight that is split."""
    return any(isinstance(source, SplitWeight) for source in tf.nest.flatten(sources))


def joined_gradients(sources: Any, take: Callable[[Any], Any]) -> Any:
    """Returns gradients in the structure of `sources`.

    Args:
        sources: a nest of weights that are split, variables and tensors.
        take: returns the gradients with respect to a nest of variables and tensors, in its structure.
    """
    flat = tf.nest.flatten(sources)
    found = take([source.shards if isinstance(source, SplitWeight) else [source] for source in flat])
    whole = [
        _joined(source, own) if isinstance(source, SplitWeight) else own[0]
        for source, own in zip(flat, found, strict=True)
    ]
    return tf.nest.pack_sequence_as(sources, whole)


def _joined(weight: SplitWeight, gradients: Sequence[Any]) -> tf.Tensor | None:
    """Returns the gradient with respect to a weight, from those of the shards of this process; None if it is unused."""
    owned = dict(weight.owned())
    if all(gradients[index] is None for index in owned):
        return None
    zeros = {index: tf.zeros_like(shard) for index, shard in owned.items() if gradients[index] is None}
    return weight.joined([zeros.get(index, gradient) for index, gradient in enumerate(gradients)])


def mark_of_one_replica(share: Share, gradients: Sequence[Any], sources: Sequence[Any]) -> None:
    """Marks gradients with respect to variables, of shards and of whole weights, where there is one replica."""
    if not share.dependence.may_have_shards:
        return
    for gradient, source in zip(gradients, sources, strict=True):
        if gradient is not None and is_variable(source):
            mark(values_of(gradient), Kind.SAME)
            as_shard(gradient, source)


def as_shard(gradient: Any, source: Any) -> Any:
    """Marks the gradient of a shard, so that numbers that are computed from some shards are found; returns it."""
    shard = shard_of(source)
    if shard is not None and gradient is not None:
        mark_shard(values_of(gradient), shard)
    return gradient


def is_variable(source: Any) -> bool:
    """Returns True if the source of a gradient is a variable, of Keras or of TensorFlow."""
    return isinstance(source, (keras.Variable, tf.Variable, tf.distribute.DistributedValues))


def values_of(gradient: Any) -> tf.Tensor:
    """Returns the tensor of a gradient, or of its slices."""
    return gradient.values if isinstance(gradient, tf.IndexedSlices) else gradient
