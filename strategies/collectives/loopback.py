"""Collectives inside one process: between its devices, as ordinary TensorFlow ops, and of a group of one process."""

from __future__ import annotations

import itertools
from collections.abc import Sequence

import tensorflow as tf

from strategies.collectives import checks
from strategies.collectives.base import Collectives
from strategies.collectives.fixed_order import reduce_in_order, sum_in_order
from strategies.collectives.process_group import DEFAULT_BUCKET_BYTES, ProcessGroup
from strategies.collectives.transport import Channel, Op, Pairs
from strategies.op_names.scopes import in_process
from strategies.topology.mesh import DeviceMesh


class LoopbackCollectives(Collectives):
    """Collectives for a mesh whose coordinates all belong to this process: plain TensorFlow ops.

    Without a collective runtime there is no timeout, and calls need no common order. Sums are computed once, in the
    order of the axis, so that all members get the same bits.

    Args:
        mesh: a mesh of one process, with a device name for each coordinate.

    Raises:
        ValueError: a mesh of several processes.
    """

    def __init__(self, mesh: DeviceMesh) -> None:
        if mesh.num_processes != 1:
            raise ValueError(
                f"LoopbackCollectives supports one process only; use TensorFlowCollectives or Horovod between "
                f"processes. Received: a mesh over {mesh.num_processes} processes."
            )
        super().__init__(mesh, mesh.ranks[0])
        # The device that computes the sum changes from call to call, to balance the load.
        self._turn = itertools.count()

    def _all_reduce(self, values: list[tf.Tensor], axis: str, op: Op) -> list[tf.Tensor]:
        with in_process("all_reduce", axis):
            results: dict[int, tf.Tensor] = {}
            for group in self.mesh.groups(axis):
                with tf.device(self._device(group[next(self._turn) % len(group)])):
                    total = reduce_in_order([values[i] for i in group], op)
                results.update((i, total) for i in group)
            return self._on_devices(lambda _, i: tf.identity(results[i]))

    def _all_gather(
        self, values: list[tf.Tensor], axis: str, dim: int, sizes: list[tf.Tensor] | None
    ) -> list[tf.Tensor]:
        with in_process("all_gather", axis):
            return self._on_devices(lambda _, i: tf.concat([values[j] for j in self.mesh.group(i, axis)], dim))

    def _reduce_scatter(
        self, values: list[tf.Tensor], axis: str, dim: int, sizes: list[tf.Tensor] | None
    ) -> list[tf.Tensor]:
        with in_process("reduce_scatter", axis):
            num_parts = self.mesh.axis_size(axis)
            parts = self._on_devices(
                lambda i, _: tf.split(values[i], num_parts if sizes is None else sizes[i], dim, num=num_parts)
            )
            return self._on_devices(
                lambda _, i: sum_in_order(parts[j][self.mesh.position(i, axis)] for j in self.mesh.group(i, axis))
            )

    def _broadcast(self, values: list[tf.Tensor], axis: str, root: int) -> list[tf.Tensor]:
        with in_process("broadcast", axis):
            return self._on_devices(lambda _, i: tf.identity(values[self.mesh.group(i, axis)[root]]))

    def _all_to_all(self, values: list[tf.Tensor], axis: str, split_dim: int, concat_dim: int) -> list[tf.Tensor]:
        with in_process("all_to_all", axis):
            parts = self._on_devices(lambda i, _: tf.split(values[i], self.mesh.axis_size(axis), split_dim))
            return self._on_devices(
                lambda _, i: tf.concat(
                    [parts[j][self.mesh.position(i, axis)] for j in self.mesh.group(i, axis)], concat_dim
                )
            )

    def _permute(self, values: list[tf.Tensor], axis: str, pairs: Pairs) -> list[tf.Tensor]:
        with in_process("permute", axis):
            source_of = {target: source for source, target in pairs}

            def receive(_: int, index: int) -> tf.Tensor:
                source = source_of.get(self.mesh.position(index, axis))
                if source is None:
                    return tf.zeros_like(values[index])
                return tf.identity(values[self.mesh.group(index, axis)[source]])

            return self._on_devices(receive)

    def _exchange_sizes(self, values: list[tf.Tensor], axis: str, dim: int) -> list[tf.Tensor] | None:
        static = [value.shape[dim] for value in values]
        if None not in static and all(len({static[i] for i in group}) == 1 for group in self.mesh.groups(axis)):
            return None
        sizes = self._on_devices(lambda i, _: tf.shape(values[i])[dim])
        return self._on_devices(lambda _, i: tf.stack([sizes[j] for j in self.mesh.group(i, axis)]))

    def _channel(self, axis: str, source: int, target: int, num_messages: int) -> Channel:
        groups = self.mesh.groups(axis)
        return _LoopbackChannel([self._device(group[target]) for group in groups], num_messages)


class _LoopbackChannel(Channel):
    """A channel that keeps messages in a table between send and recv; the send must come first in program order."""

    def __init__(self, target_devices: Sequence[str], num_messages: int) -> None:
        self._devices = list(target_devices)
        self._num_messages = num_messages
        self._sent: dict[int, list[tf.Tensor]] = {}
        self._send_tags: set[int] = set()

    def send(self, values: Sequence[tf.Tensor], tag: int = 0) -> list[tf.Tensor]:
        tensors = checks.check_values(values, len(self._devices), arithmetic=False)
        checks.check_tag(tag, self._num_messages, self._send_tags, "a send")
        self._sent[tag] = tensors
        return tensors

    def recv(self, shapes: Sequence[Sequence[int] | tf.Tensor], dtype: tf.DType, tag: int = 0) -> list[tf.Tensor]:
        checks.check_shape_count(len(shapes), len(self._devices))
        if tag not in self._sent:
            raise ValueError(
                f"No message with tag {tag} was sent: inside one process, send before receiving, and receive "
                f"once. Available tags: {sorted(self._sent)}."
            )
        received = []
        for device, value, shape in zip(self._devices, self._sent.pop(tag), shapes, strict=True):
            expected = tf.TensorShape(None if isinstance(shape, tf.Tensor) else shape)
            if value.dtype != dtype or not expected.is_compatible_with(value.shape):
                raise ValueError(
                    f"Expected {dtype} of shape {expected} under tag {tag}, but {value.dtype} of shape "
                    f"{value.shape} was sent."
                )
            with tf.device(device):
                received.append(tf.stop_gradient(value))
        return received


class LoopbackProcessGroup(ProcessGroup):
    """The process group of a process without others: every collective returns its input and creates no op."""

    def __init__(self) -> None:
        self.rank = 0
        self.num_processes = 1
        self.bucket_bytes = DEFAULT_BUCKET_BYTES
        self.combines_means = False
        self._between_devices = None

    def sum_gradients(self, values: Sequence[tf.Tensor], fused: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
        """Returns the values, then `fused`."""
        return [*values, *fused]

    def sum(self, values: Sequence[tf.Tensor], fused: Sequence[tf.Tensor] = ()) -> list[tf.Tensor]:
        """Returns the values, then `fused`."""
        return [*values, *fused]

    def maximum(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the values."""
        return list(values)

    def gather(self, value: tf.Tensor, dim: int = 0, *, equal_sizes: bool = False) -> tf.Tensor:
        """Returns the value."""
        return value

    def reduce_scatter(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value."""
        return value

    def all_to_all(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value."""
        return value

    def broadcast(self, value: tf.Tensor, root: int = 0) -> tf.Tensor:
        """Returns the value."""
        return value

    def barrier(self) -> None:
        """Returns at once."""


#: The group of a process that knows no other.
LOOPBACK = LoopbackProcessGroup()
