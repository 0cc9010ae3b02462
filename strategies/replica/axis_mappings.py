"""Mappings of a tensor between the processes along a mesh axis, forward and backward.

The processes of one replica run the same computations on everything that is not split, so a replicated tensor has the
same gradient on all of them. The mappings are therefore not the adjoints over all processes, as in `Collectives`, but
those of Megatron-LM: a sum passes its gradient on unchanged, and a tensor that is copied to all processes gets the sum
of their gradients. The mappings form pairs, each of which is the other's gradient.

The contract is tested in ``tests/strategies/processes/spanning_tensor.py``.

Source: Shoeybi et al., arXiv:1909.08053, section 3; Korthikanti et al., arXiv:2205.05198, section 4.2.
"""

from __future__ import annotations

import itertools
from collections.abc import Callable, Sequence
from typing import Any

import tensorflow as tf

from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.collectives.base import Collectives
from strategies.replica.deferred import in_shapes_only
from strategies.replica.recording import may_have_gradient

#: The start of each process' part along a dimension, then the end of the last part: ints, or int32 scalars where they
#: are not known before the graph runs. No part is larger than the first.
Bounds = Sequence[Any]


class AxisMappings:
    """Mappings between the processes that differ along one mesh axis only; all of them call the same in the same order.

    The mappings and their gradients run on the device of the collectives. Only floating-point tensors have gradients.
    Nothing is sent in graphs that only infer shapes.

    Args:
        collectives: the collectives between processes, each of which has one position in their mesh.
        axis: a mesh axis that crosses processes.
    """

    def __init__(self, collectives: Collectives, axis: str) -> None:
        self._collectives, self._axis = collectives, axis
        #: This process' position along the axis, and the number of processes along it.
        self.position = collectives.mesh.position(collectives.local_indices[0], axis)
        self.num_processes = collectives.mesh.axis_size(axis)
        self._device = collectives.mesh.devices[collectives.local_indices[0]]

    def copied(self, value: tf.Tensor) -> tf.Tensor:
        """Passes a replicated tensor to computations that differ. Gradient: the sum of theirs, :meth:`summed`."""
        return self._mapped(value, tf.identity, self.summed)

    def summed(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the sum of the processes' tensors. Gradient: passed on unchanged, :meth:`copied`."""

        def total(own: tf.Tensor) -> tf.Tensor:
            return self._collectives.all_reduce([own], self._axis, differentiable=False)[0]

        return self._mapped(value, tf.identity if in_shapes_only() else total, self.copied)

    def part(self, value: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        """Returns this process' part of a replicated tensor. Gradient: the parts' gradients, :meth:`joined`."""
        start, end = bounds[self.position], bounds[self.position + 1]
        return self._mapped(
            value, lambda whole: _slice(whole, dim, start, end), lambda upstream: self.joined(upstream, dim, bounds)
        )

    def joined(self, value: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        """Returns all processes' parts, joined. Gradient: this process' :meth:`part` of the replicated gradient."""
        return self._mapped(
            value,
            lambda own: self._all_gather(own, dim, bounds),
            lambda upstream: self.part(upstream, dim, bounds),
        )

    def gathered(self, value: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        """Joins all parts, for computations that differ. Gradient: part of the gradients' sum, :meth:`scattered`."""
        return self._mapped(
            value,
            lambda own: self._all_gather(own, dim, bounds),
            lambda upstream: self.scattered(upstream, dim, bounds),
        )

    def scattered(self, value: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        """Returns this process' part of the sum of all tensors. Gradient: the parts' gradients, :meth:`gathered`."""
        return self._mapped(
            value,
            lambda own: self._reduce_scatter(own, dim, bounds),
            lambda upstream: self.gathered(upstream, dim, bounds),
        )

    def _mapped(
        self,
        value: Any,
        forward: Callable[[tf.Tensor], tf.Tensor],
        backward: Callable[[tf.Tensor], tf.Tensor],
    ) -> tf.Tensor:
        with tf.device(self._device):
            tensor = tf.convert_to_tensor(value)
            if not may_have_gradient(tensor):
                return like_in_rows(tensor, forward(tensor))

            @tf.custom_gradient
            def mapping(own: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], tf.Tensor]]:
                return like_in_rows(own, forward(own)), backward

            mapped: tf.Tensor = mapping(tensor)
            return mapped

    def _all_gather(self, own: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        sizes = _sizes(bounds)
        if in_shapes_only():
            return _zeros_of_size(own, dim, bounds[-1])
        if _are_equal(sizes):
            return self._collectives.all_gather([own], self._axis, dim, equal_sizes=True, differentiable=False)[0]
        # Messages are padded to one size. Every process knows all sizes, so that no size is sent.
        sent = _padded(own, dim, sizes[0] - sizes[self.position], sizes[0])
        [rows] = self._collectives.all_gather([sent], self._axis, dim, equal_sizes=True, differentiable=False)
        parts = tf.split(rows, self.num_processes, dim)
        return tf.concat([_slice(part, dim, 0, size) for part, size in zip(parts, sizes, strict=True)], dim)

    def _reduce_scatter(self, own: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        sizes = _sizes(bounds)
        if in_shapes_only():
            return _zeros_of_size(own, dim, sizes[self.position])
        if not _are_equal(sizes):
            parts = [_slice(own, dim, start, end) for start, end in itertools.pairwise(bounds)]
            own = tf.concat(
                [_padded(part, dim, sizes[0] - size, sizes[0]) for part, size in zip(parts, sizes, strict=True)], dim
            )
        [part] = self._collectives.reduce_scatter([own], self._axis, dim, differentiable=False)
        return _slice(part, dim, 0, sizes[self.position])


def _sizes(bounds: Bounds) -> list[Any]:
    return [end - start for start, end in itertools.pairwise(bounds)]


def _are_equal(sizes: Sequence[Any]) -> bool:
    return all(isinstance(size, int) and size == sizes[0] for size in sizes)


def _slice(value: tf.Tensor, dim: int, start: Any, end: Any) -> tf.Tensor:
    known = isinstance(start, int) and isinstance(end, int)
    if known and (start, end) == (0, value.shape[dim]):
        return tf.identity(value)
    part = value[(*[slice(None)] * dim, slice(start, end))]
    return _with_size(part, value, dim, end - start if known else None)


def _padded(value: tf.Tensor, dim: int, more: Any, size: Any) -> tf.Tensor:
    if isinstance(more, int) and not more:
        return value
    paddings = [[0, 0] for _ in value.shape]
    paddings[dim] = [0, more]
    return _with_size(tf.pad(value, paddings), value, dim, size if isinstance(size, int) else None)


def _zeros_of_size(value: tf.Tensor, dim: int, size: Any) -> tf.Tensor:
    """Returns zeros in the shape of `value` with another size along `dim`; only their shape is used."""
    shape = tf.concat([tf.shape(value)[:dim], [size], tf.shape(value)[dim + 1 :]], 0)
    return _with_size(tf.zeros(shape, value.dtype), value, dim, size if isinstance(size, int) else None)


def _with_size(value: tf.Tensor, like: tf.Tensor, dim: int, size: int | None) -> tf.Tensor:
    shape = like.shape.as_list()
    shape[dim] = size
    return tf.ensure_shape(value, shape) if tf.executing_eagerly() else _set_shape(value, shape)


def _set_shape(value: tf.Tensor, shape: Sequence[int | None]) -> tf.Tensor:
    value.set_shape(shape)
    return value


def like_in_rows(value: tf.Tensor, mapped: tf.Tensor) -> tf.Tensor:
    """Returns ``mapped``, marked with the row kind of its source ``value``, which its ops do not reveal."""
    share = shares.current()
    if shares.is_in_microbatches() or (share is not None and share.num_replicas > 1):
        mark(mapped, shares.current_dependence().kind(value))
    return mapped


def as_rows(values: Any, sources: Any) -> Any:
    """Marks tensors as having rows if all tensors that they are cut, or joined, from have rows.

    Args:
        values: a nest of tensors.
        sources: a nest of the tensors that they are made from.

    Returns:
        `values`.
    """
    dependence = shares.known_dependence()
    if dependence is not None:
        leaves = [leaf for leaf in tf.nest.flatten(sources) if isinstance(leaf, tf.Tensor)]
        if leaves and all(dependence.kind(leaf) is Kind.ROWS for leaf in leaves):
            for value in tf.nest.flatten(values):
                mark(value, Kind.ROWS)
    return values
