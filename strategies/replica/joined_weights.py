"""Weights whose shards are joined for a computation that is not split, and the gradients of their shards.

The gradient of a table that is looked up has one slice for each index, and Keras' optimizers process each slice by
itself. So the gradient of a shard has as many slices as the table's, with zeros where the index is in another shard.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.axis_mappings import AxisMappings, like_in_rows
from strategies.replica.splitting import SplitWeight


def joined_weight(
    weight: SplitWeight, owned: Sequence[int], devices: Sequence[str], between: AxisMappings | None, dtype: str
) -> tf.Tensor:
    """Returns a whole weight, on the first device. The gradient of each shard is its part, on the shard's device.

    Args:
        weight: a weight that already has all of its shards.
        owned: the numbers of the shards that this process owns.
        devices: the devices of these shards.
        between: joins this process to the owners of other shards; None if there are none, or only shapes matter.
        dtype: the dtype of the result.
    """
    bounds = [0, *itertools.accumulate(weight.sizes)]

    @tf.custom_gradient
    def join(*shards: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], list[Any]]]:
        parts = []
        for shard, device in zip(shards, devices, strict=True):
            with tf.device(device):
                parts.append(tf.cast(shard, dtype))
        with tf.device(devices[0]):
            whole = tf.concat(parts, weight.dim) if len(parts) > 1 else tf.identity(parts[0])
            if between is not None:
                whole = between.joined(whole, weight.dim, bounds[:: len(owned)])

        def backward(upstream: Any) -> list[Any]:
            found = []
            for index, shard, device in zip(owned, shards, devices, strict=True):
                with tf.device(device):
                    part = _part(upstream, tuple(shard.shape), weight.dim, bounds[index])
                    found.append(tf.cast(part, shard.dtype))
            return found

        return whole, backward

    read = []
    for index, device in zip(owned, devices, strict=True):
        with tf.device(device):
            read.append(tf.convert_to_tensor(weight.shards[index]))
    joined: tf.Tensor = join(*read)
    return joined


def _part(gradient: Any, shape: tuple[int, ...], dim: int, begin: int) -> Any:
    """Returns the part of a weight's gradient (a tensor or slices of rows) for the shard at `begin` along `dim`."""
    end = begin + shape[dim]
    if not isinstance(gradient, tf.IndexedSlices):
        return gradient[(*[slice(None)] * dim, slice(begin, end))]
    values, indices, dense_shape = gradient.values, gradient.indices, tf.constant(shape, tf.int64)
    if dim:
        return tf.IndexedSlices(values[(*[slice(None)] * dim, slice(begin, end))], indices, dense_shape)
    mine = tf.logical_and(indices >= begin, indices < end)
    kept = tf.where(tf.reshape(mine, [-1, *[1] * (len(shape) - 1)]), values, tf.zeros([], values.dtype))
    inside = like_in_rows(indices, tf.clip_by_value(indices - begin, 0, end - begin - 1))
    return tf.IndexedSlices(kept, inside, dense_shape)
