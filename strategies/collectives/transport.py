"""The interface that a transport has to implement, and the shapes of its tensors, as far as they are known."""

from __future__ import annotations

import abc
import math
from collections.abc import Callable, Sequence
from typing import Literal

import tensorflow as tf

from strategies.topology.mesh import DeviceMesh

Op = Literal["sum", "mean", "min", "max"]
Pairs = Sequence[tuple[int, int]]
#: Dimensions: integers where known at tracing time, else int32 scalars.
Shape = Sequence[int | tf.Tensor]


class Channel(abc.ABC):
    """One-way messages between two positions of an axis; made by `Collectives.channel`."""

    @abc.abstractmethod
    def send(self, values: Sequence[tf.Tensor], tag: int = 0) -> list[tf.Tensor]:
        """Sends one value from each local source.

        Args:
            values: one for each coordinate of this process at the source position, ascending; any shape.
            tag: the number of the message; each may be sent once.

        Returns:
            A tensor for each value, ready when the send has completed. **This may require that the peer has posted its
            receive**: only the end of the step may depend on it, neither computation nor a receive.
        """

    @abc.abstractmethod
    def recv(self, shapes: Sequence[Sequence[int] | tf.Tensor], dtype: tf.DType, tag: int = 0) -> list[tf.Tensor]:
        """Receives the values that the peers send with `tag`.

        Args:
            shapes: one for each coordinate of this process at the target position, ascending: the shape sent,
                as integers where the sender knows it statically, as an int32 tensor where it does not.
            dtype: the dtype sent.
            tag: the number of the message; each may be received once.

        Returns:
            The values, each on its device. They have no gradient: a schedule receives gradients as messages, too.
        """


class Transport(abc.ABC):
    """The part of `Collectives` that differs between implementations.

    Values have been checked and detached from the gradient tape; an axis may have one member. Shapes are those of
    the public methods of the same name.

    Args:
        mesh: the grid of coordinates.
        rank: this process' rank in the mesh.
    """

    def __init__(self, mesh: DeviceMesh, rank: int = 0) -> None:
        self.mesh = mesh
        self.rank = rank
        self.local_indices = mesh.local_indices(rank)

    @abc.abstractmethod
    def _all_reduce(self, values: list[tf.Tensor], axis: str, op: Op) -> list[tf.Tensor]:
        """Implements `all_reduce` with op sum, min or max."""

    def _all_reduce_many(self, values: list[list[tf.Tensor]], axis: str) -> list[list[tf.Tensor]]:
        """Implements `all_reduce_many`; by default with one concatenated vector for each coordinate."""
        if len(values[0]) == 1:
            return [[total] for total in self._all_reduce([own[0] for own in values], axis, "sum")]
        vectors = self._on_devices(lambda local, _: tf.concat([tf.reshape(v, [-1]) for v in values[local]], axis=0))
        totals = self._all_reduce(vectors, axis, "sum")
        return [self._parted(local, total, values[local]) for local, total in enumerate(totals)]

    def _parted(self, local: int, vector: tf.Tensor, like: list[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the parts of a concatenated vector, in the shapes of `like`."""
        with tf.device(self._device(local)):
            known = [value.shape.num_elements() is not None for value in like]
            shapes = [value.shape if fixed else tf.shape(value) for value, fixed in zip(like, known, strict=True)]
            sizes = [v.shape.num_elements() if fixed else tf.size(v) for v, fixed in zip(like, known, strict=True)]
            parts = tf.split(vector, sizes, num=len(like))
            return [tf.reshape(part, shape) for part, shape in zip(parts, shapes, strict=True)]

    @abc.abstractmethod
    def _all_gather(
        self, values: list[tf.Tensor], axis: str, dim: int, sizes: list[tf.Tensor] | None
    ) -> list[tf.Tensor]:
        """Implements `all_gather`; `sizes` holds for each local value its group's sizes along `dim`, None if equal."""

    @abc.abstractmethod
    def _reduce_scatter(
        self, values: list[tf.Tensor], axis: str, dim: int, sizes: list[tf.Tensor] | None
    ) -> list[tf.Tensor]:
        """Implements `reduce_scatter` with op sum, into parts of the given `sizes`, equal ones if None."""

    @abc.abstractmethod
    def _broadcast(self, values: list[tf.Tensor], axis: str, root: int) -> list[tf.Tensor]:
        """Implements `broadcast`."""

    @abc.abstractmethod
    def _all_to_all(self, values: list[tf.Tensor], axis: str, split_dim: int, concat_dim: int) -> list[tf.Tensor]:
        """Implements `all_to_all`."""

    @abc.abstractmethod
    def _permute(self, values: list[tf.Tensor], axis: str, pairs: Pairs) -> list[tf.Tensor]:
        """Implements `permute`."""

    @abc.abstractmethod
    def _exchange_sizes(self, values: list[tf.Tensor], axis: str, dim: int) -> list[tf.Tensor] | None:
        """Returns for each local value its group's sizes along `dim`, int32 `[n]`; None if known to be equal."""

    @abc.abstractmethod
    def _channel(self, axis: str, source: int, target: int, num_messages: int) -> Channel:
        """Implements `channel`."""

    def _device(self, local: int) -> str:
        """Returns the device of local coordinate number `local`, as ``tf.device`` takes it."""
        return self.mesh.devices[self.local_indices[local]]

    def _on_devices(self, make: Callable[[int, int], tf.Tensor]) -> list[tf.Tensor]:
        """Returns ``make(local number, flat index)`` for every local coordinate, computed on its device."""
        made = []
        for local, index in enumerate(self.local_indices):
            with tf.device(self._device(local)):
                made.append(make(local, index))
        return made

    def _cut(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        # Detached: a transport's ops may have no gradient, or one that is not the adjoint.
        return self._on_devices(lambda local, _: tf.stop_gradient(values[local]))


def shape_of(value: tf.Tensor) -> list[int | tf.Tensor]:
    """Returns the dimensions: integers where known, else int32 scalars."""
    static = value.shape.as_list()
    if None not in static:
        return list(static)
    dynamic = tf.shape(value)
    return [dynamic[dim] if size is None else size for dim, size in enumerate(static)]


def num_elements(shape: Shape | tf.Tensor) -> int | tf.Tensor:
    """Returns the product of the dimensions: an integer if all are integers, else an int32 scalar."""
    return tf.reduce_prod(shape) if isinstance(shape, tf.Tensor) else math.prod(shape)


def size_in_bytes(values: Sequence[tf.Tensor]) -> int | None:
    """Returns the bytes of all values together; None if a shape is not known at tracing time."""
    counts = [value.shape.num_elements() for value in values]
    return None if None in counts else sum(n * value.dtype.size for n, value in zip(counts, values, strict=True))
