"""The process group along one mesh axis: sums, gathers and broadcasts of one value per process.

Along "data" every process owns some replicas; their local sum is one term of a global sum. All processes must call the
same methods in the same order, which they do because they run the same program on the same global batches.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies.buckets import make_buckets
from strategies.collectives.base import Collectives
from strategies.collectives.strings import gathered_strings

#: Large enough for a small model's gradients to fit into one bucket, small enough for those of a large model to start
#: early and to have several in flight at once.
DEFAULT_BUCKET_BYTES = 4 * 2**20
#: The maximum size of one broadcast. gRPC carries messages below 2 GiB: for a longer one TensorFlow reports that it has
#: received 0 bytes. Gathers and all-to-alls are not cut: they carry buckets, single weights of a process, and rows of a
#: batch.
MAX_MESSAGE_BYTES = 2**30


class ProcessGroup:
    """Sums, gathers and broadcasts between the processes whose coordinates differ from this one's only along one axis.

    Args:
        collectives: the collectives between the processes; each owns one coordinate.
        between_devices: the collectives between all devices of all processes along `axis`; the first device of each
            process is that of `collectives`. With them, gradients of processes of several GPUs need no detour through
            the first GPU. None if each process sums over its devices before it sends.
        bucket_bytes: the maximum size of a bucket of gradients; a larger gradient has a bucket of its own.
        axis: an axis of the mesh of `collectives`.
        compression: the name of a compression of gradients that `collectives` support; None for none.
        reduction: "average", or the name of another reduction of gradients that `collectives` support.

    Raises:
        ValueError: an unknown axis, a process with several coordinates, options that `collectives` do not support.
    """

    def __init__(
        self,
        collectives: Collectives,
        bucket_bytes: int = DEFAULT_BUCKET_BYTES,
        *,
        axis: str = "data",
        between_devices: Collectives | None = None,
        compression: str | None = None,
        reduction: str = "average",
    ) -> None:
        if len(collectives.local_indices) != 1:
            raise ValueError(
                "A process group needs processes with one coordinate each. Received: "
                f"{len(collectives.local_indices)} local coordinates, in the mesh {collectives.mesh.axes}."
            )
        #: This process' position along the axis, and the number of positions.
        self.rank = collectives.mesh.position(collectives.local_indices[0], axis)
        self.num_processes = collectives.mesh.axis_size(axis)
        self._axis = axis
        self._collectives = collectives
        self._between_devices = between_devices
        #: The maximum size of a bucket of gradients.
        self.bucket_bytes = bucket_bytes
        self._gradient_options: dict[str, Any] = {}
        if compression is not None:
            self._gradient_options["compression"] = compression
        #: True if gradients are not summed: then each process contributes the gradient of the mean over its own rows.
        self.combines_means = reduction != "average"
        if self.combines_means:
            self._gradient_options["op"] = reduction
        if self._gradient_options:
            # Raises now, not at the first step, if `collectives` do not support the options.
            self.sum_gradients([tf.zeros([1])])

    def sum_gradients(self, values: Sequence[tf.Tensor], fused: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
        """Returns sums as :meth:`sum` does, with the compression and reduction of gradients; `fused` have none."""
        if self._gradient_options:
            return [*self._sum(values, self._gradient_options), *self.sum(fused)]
        return self.sum(values, fused)

    def sum(self, values: Sequence[tf.Tensor], fused: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
        """Returns the sums over the processes of `values`, then of `fused`, with their shapes and dtypes.

        Args:
            values: this process' terms, in the order in which variables were created: the last are assumed to be
                ready first, like gradients.
            fused: terms of fused small reductions of the same step, ready before the last of `values`. They join the
                last bucket of their dtype instead of a bucket of their own.
        """
        return self._sum(values, {}, fused)

    def maximum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the elementwise maxima of small values over the processes, by one all-reduce for each dtype."""
        found: list[tf.Tensor] = list(values)
        for dtype in dict.fromkeys(value.dtype for value in values):
            mine = [i for i, value in enumerate(values) if value.dtype == dtype]
            sent = tf.concat([tf.reshape(values[i], [-1]) for i in mine], 0)
            [largest] = self._collectives.all_reduce([sent], self._axis, "max", differentiable=False)
            parts = tf.split(largest, [values[i].shape.num_elements() for i in mine])
            for i, part in zip(mine, parts, strict=True):
                found[i] = tf.reshape(part, values[i].shape)
        return found

    @property
    def joins_devices(self) -> bool:
        """True if :meth:`sum_of_devices` is available."""
        return self._between_devices is not None

    @property
    def devices(self) -> tuple[str, ...]:
        """The local devices whose terms :meth:`sum_of_devices` adds; empty if it is not available."""
        joined = self._between_devices
        return () if joined is None else tuple(joined.mesh.devices[index] for index in joined.local_indices)

    def sum_of_devices(
        self, values: Sequence[Sequence[tf.Tensor]], fused: Sequence[Sequence[tf.Tensor]] = ()
    ) -> list[list[tf.Tensor]]:
        """Returns the sums over all devices of all processes; each is a list with one copy per local device.

        Args:
            values: for each sum the terms of the local devices, each on its device.
            fused: small reductions that are fused, in the layout of `values`; see :meth:`sum`.
        """
        if self._between_devices is None:
            raise RuntimeError("This group joins processes, not their devices.")
        return self._sums(self._between_devices, [*values, *fused], len(fused))

    def _sum(
        self, values: Sequence[tf.Tensor], options: Mapping[str, Any], fused: Sequence[tf.Tensor] = ()
    ) -> list[tf.Tensor]:
        terms = [[term] for term in (*values, *fused)]
        return [total for [total] in self._sums(self._collectives, terms, len(fused), options)]

    def _sums(
        self,
        collectives: Collectives,
        values: Sequence[Sequence[tf.Tensor]],
        num_fused: int,
        options: Mapping[str, Any] | None = None,
    ) -> list[list[tf.Tensor]]:
        """Returns for each item of `values` the sum over all members, a list by local coordinate of `collectives`."""
        terms = [[tf.convert_to_tensor(term) for term in own] for own in values]
        sizes = [(own[0].shape.num_elements() or 0) * own[0].dtype.size for own in terms]
        names = [own[0].dtype.name for own in terms]
        results: list[list[tf.Tensor]] = [[] for _ in terms]
        for bucket in make_buckets(sizes, names, self.bucket_bytes, num_fused):
            sent = [list(own) for own in zip(*(terms[i] for i in bucket.indices), strict=True)]
            totals = collectives.all_reduce_many(sent, self._axis, **(options or {}))
            for i, total in zip(bucket.indices, zip(*totals, strict=True), strict=True):
                results[i] = list(total)
        return results

    def gather(self, value: tf.Tensor, dim: int = 0, *, equal_sizes: bool = False) -> tf.Tensor:
        """Returns the processes' values concatenated along `dim`, by rank; their sizes along `dim` may differ.

        The sizes are exchanged first, unless `equal_sizes` promises that they are equal. Strings are gathered along the
        first dimension only.
        """
        value = tf.convert_to_tensor(value)
        if value.dtype == tf.string:
            return gathered_strings(self, value, dim)
        if value.dtype == tf.complex128:
            # The bits of one number are two int64, in an additional last dimension.
            return tf.bitcast(self.gather(tf.bitcast(value, tf.int64), dim, equal_sizes=equal_sizes), value.dtype)
        sent = [to_wire(value)]
        [gathered] = self._collectives.all_gather(sent, self._axis, dim, equal_sizes=equal_sizes, differentiable=False)
        return from_wire(gathered, value.dtype)

    def reduce_scatter(self, value: tf.Tensor) -> tf.Tensor:
        """Returns this process' part, by rank, of the sum of the processes' values.

        Shapes: `[n * d]` -> `[d]` for ``n`` processes.
        """
        [part] = self._collectives.reduce_scatter([value], self._axis, differentiable=False)
        return part

    def all_to_all(self, value: tf.Tensor) -> tf.Tensor:
        """Returns this process' part, by rank, of every process' value, concatenated by rank.

        Shapes: `[n * d, ...]` -> `[n * d, ...]` for ``n`` processes, equal on all of them. It has no gradient.
        """
        [parts] = self._collectives.all_to_all([value], self._axis, 0, 0, differentiable=False)
        return parts

    def broadcast(self, value: tf.Tensor, root: int = 0) -> tf.Tensor:
        """Returns the value of the process at position `root`; the other values give shape and dtype only."""
        sent = to_wire(tf.convert_to_tensor(value))
        return from_wire(self._in_messages(sent, lambda part: self._broadcast(part, root)), value.dtype)

    def _broadcast(self, value: tf.Tensor, root: int) -> tf.Tensor:
        [received] = self._collectives.broadcast([value], self._axis, root, differentiable=False)
        return received

    @staticmethod
    def _in_messages(value: tf.Tensor, send: Callable[[tf.Tensor], tf.Tensor]) -> tf.Tensor:
        """Sends a value, in several messages if its shape is known and too large, and returns the received value."""
        count = value.shape.num_elements()
        most = MAX_MESSAGE_BYTES // value.dtype.size
        if count is None or count <= most:
            return send(value)
        flat = tf.reshape(value, [-1])
        received = [send(flat[begin : begin + most]) for begin in range(0, count, most)]
        return tf.reshape(tf.concat(received, 0), value.shape)

    def barrier(self) -> None:
        """Returns when all processes have called it."""
        self.sum([tf.zeros([], tf.int32)])


# Collectives support few dtypes: others are sent as the same bits of another dtype, or as a wider one.
_SAME_BITS = {tf.uint32: tf.int32, tf.uint64: tf.int64, tf.complex64: tf.int64}
_WIDER = {tf.bool: tf.int32, tf.int8: tf.int32, tf.uint8: tf.int32, tf.int16: tf.int32, tf.uint16: tf.int32}


def wire_dtype(dtype: str) -> str:
    """Returns the name of the dtype in which collectives carry tensors of `dtype`."""
    own = tf.as_dtype(dtype)
    return str((_SAME_BITS | _WIDER).get(own, own).name)


def to_wire(value: tf.Tensor) -> tf.Tensor:
    """Returns a tensor of numbers in a dtype that all collectives support."""
    if value.dtype in _SAME_BITS:
        return tf.bitcast(value, _SAME_BITS[value.dtype])
    return tf.cast(value, _WIDER[value.dtype]) if value.dtype in _WIDER else value


def from_wire(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Inverts `to_wire`."""
    return tf.bitcast(value, dtype) if dtype in _SAME_BITS else tf.cast(value, dtype)
