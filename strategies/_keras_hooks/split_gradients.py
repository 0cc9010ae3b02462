"""Gradients with respect to whole weights of split layers, such as `layer.kernel`: those of the shards, joined.

On one device `layer.kernel` is a variable. In a split layer it is a `SplitWeight`, which no tape knows.

The contract is tested in ``tests/strategies/_keras_hooks/test_numbers_of_shards.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.splitting import SplitWeight


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
