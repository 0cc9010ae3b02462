"""Collectives over Horovod, between processes, by Gloo or MPI."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Literal

import horovod.tensorflow as hvd
import tensorflow as tf

from strategies.collectives import checks
from strategies.collectives.base import Collectives
from strategies.collectives.horovod import members
from strategies.collectives.horovod.channel import HorovodChannel
from strategies.collectives.horovod.fence import Fence
from strategies.collectives.horovod.group import HorovodGroup
from strategies.collectives.horovod.process_sets import channel_sets, check_running, group_ranks, process_sets
from strategies.collectives.horovod.runtime import INSTANCES, SESSION, find_set, running_sets
from strategies.collectives.transport import Channel, Op, Pairs
from strategies.collectives.watchdog import Watchdog
from strategies.control_plane import Member
from strategies.topology.mesh import DeviceMesh

_COMPRESSED = {"fp16": tf.float16, "bf16": tf.bfloat16}


class HorovodCollectives(Collectives):
    """Collectives between all processes of Horovod, each with one coordinate of the mesh. Call `start` first.

    All processes must create their instances in the same order (creating one runs a collective), trace the
    functions that use them in the same order, and take gradients of nested functions inside the outermost one.
    If a process does not take part in a collective, those that wait for it shut Horovod down, on all processes,
    after `timeout_seconds`; every later collective fails.

    16-bit floats are added in float32. Sums, minima and maxima have the same bits on all members.

    Args:
        mesh: the grid, one coordinate in each process.
        rank: this process' rank in the mesh, which must be Horovod's.
        timeout_seconds: how long collectives may be pending in this process while none finishes; 0 for no limit.
        member: this process in its job, which receives the others' reports; None if there are none.

    Raises:
        ValueError: a negative timeout; Horovod not started, or started without a process set that the mesh needs; a
            mesh that differs between processes or does not fit them. All processes raise it.
    """

    def __init__(
        self, mesh: DeviceMesh, rank: int = 0, *, timeout_seconds: float = 300.0, member: Member | None = None
    ) -> None:
        if not hvd.is_initialized():
            raise ValueError("Horovod does not run yet: call strategies.collectives.horovod.start(mesh) first.")
        self._prefix = f"strategies{INSTANCES.agree(mesh, rank)}"
        super().__init__(mesh, rank)
        [self._index] = self.local_indices
        check_running(process_sets([mesh], channel_axes=()), running_sets())
        self._fence = Fence(self._prefix)
        who = f"Rank {rank} of {mesh.size}"
        setting = "HorovodStrategy(timeout_seconds=...)"
        self._watchdog = Watchdog(who, timeout_seconds, SESSION.ender(), setting, member)
        self._watchdog.start(self)
        self._groups: dict[str, HorovodGroup] = {}
        for axis in mesh.axis_names:
            if mesh.axis_size(axis) > 1:
                ranks = group_ranks(mesh, self._index, axis)
                self._groups[axis] = self._make_group(axis, ranks, mesh.position(self._index, axis))
        self._pairs: dict[tuple[int, ...], HorovodGroup] = {}

    def all_reduce_many(
        self,
        values: Sequence[Sequence[tf.Tensor]],
        axis: str,
        op: Literal["sum", "average", "adasum"] = "sum",
        compression: Literal["fp16", "bf16"] | None = None,
    ) -> list[list[tf.Tensor]]:
        """All-reduces many tensors of this process' coordinate at once: a bucket of gradients.

        It starts when all of `values` are ready, with one grouped all-reduce for each dtype: but an all-to-all and an
        all-gather with compression, and one all-reduce for each tensor with adasum. Not differentiable.

        Args:
            values: one list of tensors of any shapes, floats or integers; each equal in shape and dtype on all members.
            axis: the mesh axis.
            op: "adasum" is Horovod's (Maleki et al., arXiv:2006.02924).
            compression: floats of more than 16 bits are sent as float16 or bfloat16. They are added in float32 and
                rounded again before the all-gather; sums must stay in the dtype's range (float16: 65504).

        Returns:
            One list, of the results in the order of the tensors.

        Raises:
            ValueError: an unknown `op` or `compression`, the average or adasum of integers, adasum with compression,
                or adasum where Horovod has none: without MPI, along an axis that is not all processes, or if their
                number is no power of two.
        """
        checks.check_op(op, ("sum", "average", "adasum"))
        if compression is not None and compression not in _COMPRESSED:
            raise ValueError(f"compression must be one of {[*_COMPRESSED, None]}. Received: {compression!r}.")
        [own] = checks.check_lists(values, len(self.local_indices))
        tensors = [checks.check_values([value], 1, arithmetic=True)[0] for value in own]
        for tensor in tensors:
            if op != "sum":
                checks.check_floating(tensor.dtype, f"The {op}")
        size = self.mesh.axis_size(axis)
        if op == "adasum" and not (hvd.mpi_enabled() and size == self.mesh.size and not size & (size - 1)):
            raise ValueError(
                f"Horovod has adasum over MPI only (python -m strategies.install_horovod --mpi, then mpirun), between "
                f"all processes, whose number is a power of two. Received: axis {axis!r} of {size} in the mesh "
                f"{self.mesh.axes}, MPI {'on' if hvd.mpi_enabled() else 'off'}."
            )
        if op == "adasum" and compression is not None:
            raise ValueError(f"adasum does not go with compression. Received: compression={compression!r}.")
        with tf.device(self._device(0)):
            cut = [tf.stop_gradient(tensor) for tensor in tensors]
            if axis not in self._groups:
                return [cut]
            dtype = None if compression is None else _COMPRESSED[compression]
            return [members.all_reduce_many(cut, self._groups[axis], op, dtype)]

    def _all_reduce(self, values: list[tf.Tensor], axis: str, op: Op) -> list[tf.Tensor]:
        return self._on_device(values, axis, lambda value, group: members.all_reduce(value, group, op))

    def _all_gather(
        self, values: list[tf.Tensor], axis: str, dim: int, sizes: list[tf.Tensor] | None
    ) -> list[tf.Tensor]:
        counts = None if sizes is None else sizes[0]
        return self._on_device(values, axis, lambda value, group: members.all_gather(value, group, dim, counts))

    def _reduce_scatter(
        self, values: list[tf.Tensor], axis: str, dim: int, sizes: list[tf.Tensor] | None
    ) -> list[tf.Tensor]:
        counts = None if sizes is None else sizes[0]
        return self._on_device(values, axis, lambda value, group: members.reduce_scatter(value, group, dim, counts))

    def _broadcast(self, values: list[tf.Tensor], axis: str, root: int) -> list[tf.Tensor]:
        return self._on_device(values, axis, lambda value, group: members.broadcast(value, group, root))

    def _all_to_all(self, values: list[tf.Tensor], axis: str, split_dim: int, concat_dim: int) -> list[tf.Tensor]:
        return self._on_device(
            values, axis, lambda value, group: members.all_to_all(value, group, split_dim, concat_dim)
        )

    def _permute(self, values: list[tf.Tensor], axis: str, pairs: Pairs) -> list[tf.Tensor]:
        if axis not in self._groups and not pairs:
            return self._on_devices(lambda local, _: tf.zeros_like(values[local]))
        return self._on_device(values, axis, lambda value, group: members.permute(value, group, pairs))

    def _exchange_sizes(self, values: list[tf.Tensor], axis: str, dim: int) -> list[tf.Tensor] | None:
        if axis not in self._groups:
            return None
        return self._on_device(values, axis, lambda value, group: members.gather_size(value, group, dim))

    def _channel(self, axis: str, source: int, target: int, num_messages: int) -> Channel:
        if tf.executing_eagerly():
            raise ValueError(
                "Make channels inside a tf.function: eagerly, a send would wait for a receive that comes "
                "after it. Use permute instead."
            )
        check_running(channel_sets(self.mesh, axis, source, target), running_sets())
        ranks = group_ranks(self.mesh, self._index, axis)
        position = self.mesh.position(self._index, axis)
        if position not in (source, target):
            return HorovodChannel(None, self._device(0), num_messages)
        pair = (ranks[source], ranks[target])
        if pair not in self._pairs:
            # Named by its direction: the channels of two opposite directions may be created in any order.
            self._pairs[pair] = self._make_group(f"{pair[0]}to{pair[1]}", pair, int(position == target))
        return HorovodChannel(self._pairs[pair], self._device(0), num_messages)

    def _on_device(
        self, values: list[tf.Tensor], axis: str, body: Callable[[tf.Tensor, HorovodGroup], tf.Tensor]
    ) -> list[tf.Tensor]:
        """Runs `body` on this process' device; returns the values as they are in a group of one."""
        if axis not in self._groups:
            return values
        return self._on_devices(lambda local, _: body(values[local], self._groups[axis]))

    def _make_group(self, label: str, ranks: tuple[int, ...], position: int) -> HorovodGroup:
        return HorovodGroup(
            ranks, position, find_set(ranks), f"{self._prefix}_{label}", self._fence, self._watchdog.ledger
        )
