"""Collectives over Horovod: between processes, over Gloo or MPI. The only module that imports horovod."""

from __future__ import annotations

import logging
import os
import threading
from collections.abc import Callable, Sequence
from typing import Any, Literal

import tensorflow as tf

from strategies.collectives import checks
from strategies.collectives.base import Collectives
from strategies.collectives.channel import Channel
from strategies.collectives.horovod import members
from strategies.collectives.horovod.channel import HorovodChannel
from strategies.collectives.horovod.fence import Fence
from strategies.collectives.horovod.process_sets import (
    Ranks,
    channel_sets,
    check_agreement,
    check_coordinates,
    check_promised_world,
    check_running,
    check_world,
    group_ranks,
    process_sets,
)
from strategies.collectives.horovod.threads import network_threads_yield
from strategies.collectives.shapes import shape_of
from strategies.collectives.transport import Op, Pairs
from strategies.collectives.watchdog import Watch
from strategies.topology.mesh import DeviceMesh

try:
    import horovod.tensorflow as hvd
except ImportError as error:
    raise ImportError(
        "Horovod for TensorFlow is not installed here. Build and install it: python -m strategies.install_horovod"
    ) from error

_logger = logging.getLogger(__name__)
_REDUCE_OPS = {"sum": hvd.Sum, "min": hvd.Min, "max": hvd.Max, "adasum": hvd.Adasum}
_COMPRESSED = {"fp16": tf.float16, "bf16": tf.bfloat16}


def start(*meshes: DeviceMesh, channel_axes: Sequence[str] = ("pipe",), all_pairs: bool = False) -> int:
    """Initialise Horovod with the process sets that collectives over `meshes` need; all processes call it alike.

    Horovod takes process sets when it starts. One is made for every group along an axis that is neither one
    process nor all of them, and one for every pair of positions between which messages pass: each costs its
    members a short exchange per cycle of Horovod, busy or not. Where Horovod runs already it is used as it is, if
    it has what is needed; with HOROVOD_DYNAMIC_PROCESS_SETS=1 it is told to make what is missing.

    Args:
        meshes: every mesh that `HorovodCollectives` will be made for, one coordinate per process.
        channel_axes: the axes along which `Collectives.channel` will be used.
        all_pairs: whether channels join any two positions of those axes. If not, they join neighbours, among
            them the last position and the first; on axes of up to three that is any two.

    Returns:
        This process' rank.

    Raises:
        ValueError: a mesh that is not one coordinate for each process of Horovod, process sets that a running
            Horovod lacks, an unknown axis, an initialisation that failed.
    """
    for mesh in meshes:
        check_coordinates(mesh)
    needed = process_sets(meshes, channel_axes, all_pairs=all_pairs)
    if not hvd.is_initialized():
        # Before, too: after an initialisation that failed Horovod accepts no other, and it says little.
        check_promised_world(meshes, os.environ)
        try:
            # The first thread is the one that computes and sends; it has to come through.
            with network_threads_yield(num_others=1):
                hvd.init(process_sets=[hvd.ProcessSet(list(ranks)) for ranks in needed])
        except ValueError as error:
            raise ValueError(
                f"Horovod did not start; what it wrote above says why. All processes must name the same meshes, "
                f"of as many coordinates as there are processes. Received: {[mesh.axes for mesh in meshes]}."
            ) from error
    for mesh in meshes:
        check_world(mesh, hvd.size())
    if os.environ.get("HOROVOD_DYNAMIC_PROCESS_SETS", "0") != "0":
        for ranks in needed:
            if ranks not in _running_sets():
                with network_threads_yield():
                    hvd.add_process_set(list(ranks))
    check_running(needed, _running_sets())
    return int(hvd.rank())


class HorovodCollectives(Collectives):
    """All processes that Horovod runs, each with one coordinate of the mesh. Call `start` first.

    All processes must make their instances in the same order (making one is an exchange in itself), trace the
    functions that use them in the same order, and take gradients of nested functions inside the outermost one.
    Where a process stays away from an exchange, those that wait for it shut Horovod down, on all processes, when
    `timeout_seconds` are over; every later exchange fails.

    16-bit floats are added in float32. Sums, minima and maxima have the same bits on all members.

    Args:
        mesh: the grid, one coordinate in each process.
        rank: this process' rank in the mesh, which must be Horovod's.
        timeout_seconds: how long exchanges may wait here while not one is done; 0: for ever.

    Raises:
        ValueError: a negative timeout, Horovod not started, or without a process set that the mesh needs; a mesh that
            differs between processes or does not fit them. All processes raise it.
    """

    def __init__(self, mesh: DeviceMesh, rank: int = 0, *, timeout_seconds: float = 300.0) -> None:
        if not hvd.is_initialized():
            raise ValueError("Horovod does not run yet: call strategies.collectives.horovod.start(mesh) first.")
        self._prefix = f"strategies{_INSTANCES.agree(mesh, rank)}"
        super().__init__(mesh, rank)
        [self._index] = self.local_indices
        check_running(process_sets([mesh], channel_axes=()), _running_sets())
        self._fence = Fence(self._prefix)
        who = f"Rank {rank} of {mesh.size}"
        self._watch = Watch(who, timeout_seconds, _shut_down, "HorovodStrategy(timeout_seconds=...)")
        self._watch.start(self)
        self._groups: dict[str, _HorovodGroup] = {}
        for axis in mesh.axis_names:
            if mesh.axis_size(axis) > 1:
                ranks = group_ranks(mesh, self._index, axis)
                self._groups[axis] = self._make_group(axis, ranks, mesh.position(self._index, axis))
        self._pairs: dict[tuple[int, ...], _HorovodGroup] = {}

    def all_reduce_many(
        self,
        values: Sequence[tf.Tensor],
        axis: str,
        op: Literal["sum", "average", "adasum"] = "sum",
        compression: Literal["fp16", "bf16"] | None = None,
    ) -> list[tf.Tensor]:
        """All-reduce many tensors of this process' coordinate at once: a bucket of gradients.

        It starts when all of `values` are there, with one negotiation for each dtype. Not differentiable.

        Args:
            values: any shapes, floats or integers; each equal in shape and dtype on all members.
            axis: the mesh axis.
            op: "adasum" is Horovod's (Maleki et al., arXiv:2006.02924).
            compression: floats of more than 16 bits travel as float16 or bfloat16. They are added in float32 and
                rounded once more for the way back; sums must stay in the dtype's range (float16: 65504).

        Returns:
            The results, in the order of `values`.

        Raises:
            ValueError: an unknown `op` or `compression`, the average or adasum of integers, adasum compressed or
                where Horovod has none: without MPI, along an axis that is not all processes, or if their number
                is no power of two.
        """
        checks.check_op(op, ("sum", "average", "adasum"))
        if compression is not None and compression not in _COMPRESSED:
            raise ValueError(f"compression must be one of {[*_COMPRESSED, None]}. Received: {compression!r}.")
        tensors = [checks.check_values([value], 1, arithmetic=True)[0] for value in values]
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
                return cut
            dtype = None if compression is None else _COMPRESSED[compression]
            return members.all_reduce_many(cut, self._groups[axis], op, dtype)

    def _all_reduce(self, values: list[tf.Tensor], axis: str, op: Op) -> list[tf.Tensor]:
        return self._here(values, axis, lambda value, group: members.all_reduce(value, group, op))

    def _all_gather(
        self, values: list[tf.Tensor], axis: str, dim: int, sizes: list[tf.Tensor] | None
    ) -> list[tf.Tensor]:
        counts = None if sizes is None else sizes[0]
        return self._here(values, axis, lambda value, group: members.all_gather(value, group, dim, counts))

    def _reduce_scatter(
        self, values: list[tf.Tensor], axis: str, dim: int, sizes: list[tf.Tensor] | None
    ) -> list[tf.Tensor]:
        counts = None if sizes is None else sizes[0]
        return self._here(values, axis, lambda value, group: members.reduce_scatter(value, group, dim, counts))

    def _broadcast(self, values: list[tf.Tensor], axis: str, root: int) -> list[tf.Tensor]:
        return self._here(values, axis, lambda value, group: members.broadcast(value, group, root))

    def _all_to_all(self, values: list[tf.Tensor], axis: str, split_dim: int, concat_dim: int) -> list[tf.Tensor]:
        return self._here(values, axis, lambda value, group: members.all_to_all(value, group, split_dim, concat_dim))

    def _permute(self, values: list[tf.Tensor], axis: str, pairs: Pairs) -> list[tf.Tensor]:
        if axis not in self._groups and not pairs:
            return self._on_devices(lambda local, _: tf.zeros_like(values[local]))
        return self._here(values, axis, lambda value, group: members.permute(value, group, pairs))

    def _exchange_sizes(self, values: list[tf.Tensor], axis: str, dim: int) -> list[tf.Tensor] | None:
        if axis not in self._groups:
            return None
        return self._here(values, axis, lambda value, group: members.gather_size(value, group, dim))

    def _channel(self, axis: str, source: int, target: int, num_messages: int) -> Channel:
        if tf.executing_eagerly():
            raise ValueError(
                "Make channels inside a tf.function: eagerly, a send would wait for a receive that comes "
                "after it. Use permute instead."
            )
        check_running(channel_sets(self.mesh, axis, source, target), _running_sets())
        ranks = group_ranks(self.mesh, self._index, axis)
        position = self.mesh.position(self._index, axis)
        if position not in (source, target):
            return HorovodChannel(None, self._device(0), num_messages)
        pair = (ranks[source], ranks[target])
        if pair not in self._pairs:
            # Named by its direction: two channels that face each other are made in any order.
            self._pairs[pair] = self._make_group(f"{pair[0]}to{pair[1]}", pair, int(position == target))
        return HorovodChannel(self._pairs[pair], self._device(0), num_messages)

    def _here(
        self, values: list[tf.Tensor], axis: str, body: Callable[[tf.Tensor, _HorovodGroup], tf.Tensor]
    ) -> list[tf.Tensor]:
        """`body` on this process' device; in a group of one nothing."""
        if axis not in self._groups:
            return values
        return self._on_devices(lambda local, _: body(values[local], self._groups[axis]))

    def _make_group(self, label: str, ranks: tuple[int, ...], position: int) -> _HorovodGroup:
        return _HorovodGroup(ranks, position, _find_set(ranks), f"{self._prefix}_{label}", self._fence, self._watch)


class _HorovodGroup(members.Group):
    """Horovod's ops on one process set.

    Args:
        ranks: as for `Group`.
        position: as for `Group`.
        process_set: Horovod's object for these ranks.
        name: unique in this process, the same on all members.
        fence: the instance's.
        watch: the instance's.
    """

    def __init__(
        self,
        ranks: tuple[int, ...],
        position: int,
        process_set: Any,
        name: str,
        fence: Fence,
        watch: Watch,
    ) -> None:
        super().__init__(ranks, position)
        self._process_set, self._name, self._fence, self._watch = process_set, name, fence, watch
        self._next_ordinal = 0
        self._lock = threading.Lock()

    def take(self, count: int = 1) -> int:
        with self._lock:
            first, self._next_ordinal = self._next_ordinal, self._next_ordinal + count
        return first

    def reduce(self, values: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        if len(values) > 1 and op != "adasum":
            return self._run(hvd.grouped_allreduce, list(values), op=_REDUCE_OPS[op])
        # Horovod's grouped form of adasum ends in a NameError.
        vectors = [tf.reshape(value, [-1]) for value in values]
        totals = [self._run(hvd.allreduce, vector, op=_REDUCE_OPS[op])[0] for vector in vectors]
        return [tf.reshape(total, shape_of(value)) for total, value in zip(totals, values, strict=True)]

    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        return self._run(hvd.allgather, rows)[0]

    def exchange(
        self, rows: tf.Tensor, splits: Sequence[int | tf.Tensor] | None = None, ordinal: int | None = None
    ) -> tf.Tensor:
        options = {} if splits is None else {"splits": tf.stack(splits)}
        return self._run(hvd.alltoall, rows, ordinal=ordinal, **options)[0]

    def broadcast(self, vector: tf.Tensor, root: int) -> tf.Tensor:
        return self._run(hvd.broadcast, vector, root_rank=self.ranks[root])[0]

    def _run(
        self, function: Callable[..., Any], value: Any, *, ordinal: int | None = None, **options: Any
    ) -> list[tf.Tensor]:
        """The outputs of a Horovod function of a tensor, or of tensors; the first has a dimension or more."""
        options["process_set"] = self._process_set
        # One op at a time, where it runs at once: it needs no name, and nobody can take it away.
        first, *others = [value] if isinstance(value, tf.Tensor) else value
        eager = tf.executing_eagerly()
        if not eager:
            # The scopes around it may differ between processes; the name does not.
            name = f"{self._name}_{self.take() if ordinal is None else ordinal}"
            options |= {"name": name, "ignore_name_scope": True}
            first = self._fence.pin(first)
        first = self._watch.waits(first)
        outputs = function(first if isinstance(value, tf.Tensor) else [first, *others], **options)
        outputs = [outputs] if isinstance(outputs, tf.Tensor) else list(outputs)
        outputs[0] = self._watch.is_done(outputs[0])
        if not eager:
            self._fence.keep(outputs[0], name)
        return outputs


def _shut_down(why: str) -> None:
    """Fails what waits now on all processes. Horovod's own error does not say why."""
    _logger.error(why)
    hvd.shutdown()


class _Instances:
    """Numbers the instances of this process as the other processes number theirs.

    Horovod's queues are process-wide, so this counter has to be, too. Processes that came later, after a failure,
    have made fewer instances: they agree on the next number that nobody has used.
    """

    def __init__(self) -> None:
        self._next = 0

    def agree(self, mesh: DeviceMesh, rank: int) -> int:
        """The number of a new instance; raises on all processes what is wrong with any one's arguments."""
        with tf.init_scope():
            said: list[tuple[int, DeviceMesh, int]] = hvd.allgather_object((self._next, mesh, rank))
        numbers, meshes, ranks = zip(*said, strict=True)
        self._next = max(numbers) + 1
        check_agreement(meshes, ranks)
        return self._next - 1


_INSTANCES = _Instances()


def _running_sets() -> dict[Ranks, int]:
    """The id of every process set that Horovod has now."""
    # Horovod has no public list of them; 0.28.1 is its last release.
    registered = hvd.mpi_ops._basics._get_process_set_ids_and_ranks()
    return {tuple(ranks): number for number, ranks in registered.items()}


def _find_set(ranks: tuple[int, ...]) -> Any:
    if len(ranks) == hvd.size():
        return hvd.global_process_set
    found = hvd.ProcessSet(list(ranks))
    found.process_set_id = _running_sets()[tuple(sorted(ranks))]
    return found
