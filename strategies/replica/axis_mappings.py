"""Mappings of a tensor between the processes along a mesh axis, forward and backward.

Processes of one replica compute alike what is not cut: the gradient of a tensor that all of them have is the same on
all. So each mapping is not the adjoint over all processes, as in `Collectives`, but Megatron-LM's: a sum hands its
gradient on as it is, and a tensor that goes to all gets the sum of theirs. Mappings are each other's gradients.

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

#: The first position of each process' part along a dimension, and the end of the last: int, or int32 scalars where they
#: are not known before the run. No part is larger than the first.
Bounds = Sequence[Any]


class AxisMappings:
    """Mappings between the processes that differ along one mesh axis only; all of them call the same, in one order.

    They compute where the collectives are, as are their gradients. What is not floating has no gradient. In graphs that
    find out shapes nothing is sent.

    Args:
        collectives: between processes, of which each is one coordinate.
        axis: a mesh axis that crosses processes.
    """

    def __init__(self, collectives: Collectives, axis: str) -> None:
        self._collectives, self._axis = collectives, axis
        #: This process' position among those along the axis, and their number.
        self.position = collectives.mesh.position(collectives.local_indices[0], axis)
        self.num_processes = collectives.mesh.axis_size(axis)
        self._device = collectives.mesh.devices[collectives.local_indices[0]]

    def copied(self, value: tf.Tensor) -> tf.Tensor:
        """A tensor that all processes have, for computations that differ. Gradient: the :meth:`summed` of theirs."""
        return self._mapped(value, tf.identity, self.summed)

    def summed(self, value: tf.Tensor) -> tf.Tensor:
        """The sum of the processes' tensors. Gradient: the same to all, :meth:`copied`."""

        def total(own: tf.Tensor) -> tf.Tensor:
            return self._collectives.all_reduce([own], self._axis, differentiable=False)[0]

        return self._mapped(value, tf.identity if in_shapes_only() else total, self.copied)

    def part(self, value: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        """This process' part of a tensor that all have. Gradient: the parts', :meth:`joined`."""
        start, end = bounds[self.position], bounds[self.position + 1]
        return self._mapped(
            value, lambda whole: _slice(whole, dim, start, end), lambda upstream: self.joined(upstream, dim, bounds)
        )

    def joined(self, value: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        """All processes' parts, joined. Gradient: :meth:`part` of that of the whole, which all have."""
        return self._mapped(
            value,
            lambda own: self._all_gather(own, dim, bounds),
            lambda upstream: self.part(upstream, dim, bounds),
        )

    def gathered(self, value: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        """All processes' parts, joined, for computations that differ. Gradient: :meth:`scattered` of theirs."""
        return self._mapped(
            value,
            lambda own: self._all_gather(own, dim, bounds),
            lambda upstream: self.scattered(upstream, dim, bounds),
        )

    def scattered(self, value: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        """This process' part of the sum of the processes' tensors. Gradient: the parts', :meth:`gathered`."""
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
            if not tensor.dtype.is_floating:
                return like_in_rows(tensor, forward(tensor))

            @tf.custom_gradient
            def mapping(own: tf.Tensor) -> tuple[tf.Tensor, Callable[[Any], tf.Tensor]]:
                return like_in_rows(own, forward(own)), backward

            mapped: tf.Tensor = mapping(tensor)
            return mapped

    def _all_gather(self, own: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        sizes = _sizes(bounds)
        if in_shapes_only():
            return _of_size(own, dim, bounds[-1])
        if _are_equal(sizes):
            return self._collectives.all_gather([own], self._axis, dim, equal_sizes=True, differentiable=False)[0]
        # Messages are of one size; every process knows all sizes, so that none is sent.
        sent = _padded(own, dim, sizes[0] - sizes[self.position], sizes[0])
        [rows] = self._collectives.all_gather([sent], self._axis, dim, equal_sizes=True, differentiable=False)
        parts = tf.split(rows, self.num_processes, dim)
        return tf.concat([_slice(part, dim, 0, size) for part, size in zip(parts, sizes, strict=True)], dim)

    def _reduce_scatter(self, own: tf.Tensor, dim: int, bounds: Bounds) -> tf.Tensor:
        sizes = _sizes(bounds)
        if in_shapes_only():
            return _of_size(own, dim, sizes[self.position])
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


def _of_size(value: tf.Tensor, dim: int, size: Any) -> tf.Tensor:
    """Returns a tensor that differs from `value` in its size along `dim` only, for its shape."""
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
    """Returns ``mapped``, said to depend on rows as the tensor of which it is made: its operations do not show it."""
    share = shares.current()
    if shares.is_in_microbatches() or (share is not None and share.num_replicas > 1):
        mark(mapped, shares.dependence_here().kind(value))
    return mapped


def as_rows(values: Any, of: Any) -> Any:
    """Says of tensors that they have something for each row, if all that they are cut from, or joined from, has.

    Args:
        values: a nest of tensors.
        of: tensors, a nest as well.

    Returns:
        `values`.
    """
    dependence = shares.known_dependence()
    if dependence is not None:
        leaves = [leaf for leaf in tf.nest.flatten(of) if isinstance(leaf, tf.Tensor)]
        if leaves and all(dependence.kind(leaf) is Kind.ROWS for leaf in leaves):
            for value in tf.nest.flatten(values):
                mark(value, Kind.ROWS)
    return values
