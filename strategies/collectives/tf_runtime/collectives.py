"""Collectives over TensorFlow's collective runtime, between devices, processes and machines."""

from __future__ import annotations

import collections
import threading
from collections.abc import Callable, Sequence
from typing import Literal

import tensorflow as tf

from strategies._tf_internals import eager_context
from strategies.collectives.base import Collectives
from strategies.collectives.tf_runtime import members, wire
from strategies.collectives.tf_runtime.channel import Link, RuntimeChannel
from strategies.collectives.transport import Channel, Op, Pairs, shape_of
from strategies.collectives.watchdog import Watchdog
from strategies.control_plane import Member
from strategies.topology.axes import KNOWN_AXES
from strategies.topology.devices import is_gpu, list_own_devices
from strategies.topology.mesh import DeviceMesh

_Body = Callable[[list[tf.Tensor]], list[tf.Tensor]]

# TensorFlow compares hints in lower case. With "auto" it would use the ring.
_HINTS_ON_GPUS = {"auto": "nccl", "NCCL": "nccl", "RING": "ring"}


class _KeyRanges:
    """Allocates ranges of group keys.

    TensorFlow's group keys are process-wide, so this counter has to be, too: two instances with the same keys fail
    with "joining a group that is already full". It starts far above the keys of tf.distribute, which count from 1.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._next = 1 << 20

    def take(self, count: int) -> int:
        with self._lock:
            first, self._next = self._next, self._next + count
        if first + count > 2**31 - 1:
            raise ValueError(f"TensorFlow's group keys are exhausted; create fewer meshes. Requested: {count} more.")
        return first


_KEY_RANGES = _KeyRanges()


class TensorFlowCollectives(Collectives):
    """Collectives over the processes of a TensorFlow cluster, over several devices of one process, or both.

    Processes must create their instances in the same order, and trace the functions that use them in the same
    order: after a retrace on one process only, the others wait until `timeout_seconds`. After a failed or
    timed-out collective TensorFlow fails every later one in the process.

    Between processes the runtime must have been started (``tf.distribute.MultiWorkerMirroredStrategy`` does so),
    and rank r of the mesh must be TensorFlow's r-th task.

    Args:
        mesh: the grid. Devices are names inside a process ("CPU:0", "/device:GPU:1"); "" means "CPU:0".
        rank: this process' rank in the mesh.
        implementation: between GPUs, "RING" for TensorFlow's own ring through the hosts, otherwise NCCL. Groups of CPU
            devices always have the ring.
        timeout_seconds: collectives fail on this process if none of them finishes for this time, because not all
            members take part; 0 for no limit.
        member: this process in its job, which receives the others' reports; None if there are none.

    Raises:
        ValueError: a device this process does not have, a negative timeout, an unknown implementation.
    """

    def __init__(
        self,
        mesh: DeviceMesh,
        rank: int = 0,
        *,
        implementation: Literal["auto", "RING", "NCCL"] = "auto",
        timeout_seconds: float = 300.0,
        member: Member | None = None,
    ) -> None:
        super().__init__(mesh, rank)
        if implementation not in ("auto", "RING", "NCCL"):
            raise ValueError(f"implementation must be 'auto', 'RING' or 'NCCL'. Received: {implementation!r}.")
        self._implementation = implementation
        who = f"Rank {rank} of {mesh.num_processes}"
        setting = "MultiWorkerMirroredStrategy(timeout_seconds=...)"
        self._watchdog = Watchdog(who, timeout_seconds, _end_all, setting, member)
        self._watchdog.start(self)
        self._devices = [_find_device(mesh.devices[index]) for index in self.local_indices]
        all_groups = [(axis, members) for axis in KNOWN_AXES for members in mesh.groups(axis)]
        first_key = _KEY_RANGES.take(len(all_groups) + mesh.size**2)
        self._groups = {
            (axis, index): self._make_group(key, members, index)
            for key, (axis, members) in enumerate(all_groups, start=first_key)
            for index in members
            if index in self.local_indices
        }
        self._first_pair_key = first_key + len(all_groups)
        # Ops are numbered within their group, so that only its members have to agree on the number.
        self._next_ordinal: dict[int, int] = collections.defaultdict(int)
        self._lock = threading.Lock()
        self._eager_functions: dict[tuple[object, ...], Callable[..., list[tf.Tensor]]] = {}

    def _all_reduce(self, values: list[tf.Tensor], axis: str, op: Op) -> list[tf.Tensor]:
        # NCCL is not faster with slices.
        num_slices = members.num_slices(values[0]) if self._groups[axis, self.local_indices[0]].on_cpu else 1

        def body(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
            link = self._links(axis, num_slices)
            return self._on_devices(lambda i, index: members.all_reduce(tensors[i], *link[index], op, num_slices))

        # Slices need a size that is known at tracing time. It is the same on all members.
        static = values[0].shape if num_slices > 1 else None
        return self._run(body, values, axis, "all_reduce", op, num_slices, static=static)

    def _all_gather(
        self, values: list[tf.Tensor], axis: str, dim: int, sizes: list[tf.Tensor] | None
    ) -> list[tf.Tensor]:
        def body(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
            link, counts = self._links(axis), self._sizes_in(tensors)
            return self._on_devices(lambda i, index: members.all_gather(tensors[i], *link[index], dim, counts[i]))

        return self._run(body, [*values, *(sizes or [])], axis, "all_gather", dim)

    def _reduce_scatter(
        self, values: list[tf.Tensor], axis: str, dim: int, sizes: list[tf.Tensor] | None
    ) -> list[tf.Tensor]:
        def body(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
            link, counts = self._links(axis), self._sizes_in(tensors)
            return self._on_devices(
                lambda i, index: members.reduce_scatter(
                    tensors[i], *link[index], dim, counts[i], self.mesh.position(index, axis)
                )
            )

        return self._run(body, [*values, *(sizes or [])], axis, "reduce_scatter", dim)

    def _broadcast(self, values: list[tf.Tensor], axis: str, root: int) -> list[tf.Tensor]:
        def body(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
            link = self._links(axis)
            return self._on_devices(
                lambda i, index: members.broadcast(tensors[i], *link[index], self.mesh.position(index, axis) == root)
            )

        return self._run(body, values, axis, "broadcast", root)

    def _all_to_all(self, values: list[tf.Tensor], axis: str, split_dim: int, concat_dim: int) -> list[tf.Tensor]:
        def body(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
            link = self._links(axis)
            return self._on_devices(
                lambda i, index: members.all_to_all(tensors[i], *link[index], split_dim, concat_dim)
            )

        return self._run(body, values, axis, "all_to_all", split_dim, concat_dim)

    def _permute(self, values: list[tf.Tensor], axis: str, pairs: Pairs) -> list[tf.Tensor]:
        source_of = {target: source for source, target in pairs}
        target_of = dict(pairs)

        def body(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
            pairs_used: dict[tuple[int, int], tuple[dict[int, wire.CollectiveGroup], int]] = {}

            def link(source: int, target: int, index: int) -> tuple[wire.CollectiveGroup, int]:
                if (source, target) not in pairs_used:
                    pairs_used[source, target] = self._pair(source, target, 1)
                groups, ordinal = pairs_used[source, target]
                return groups[index], ordinal

            def member(i: int, index: int) -> tf.Tensor:
                value, group = tensors[i], self.mesh.group(index, axis)
                position = group.index(index)
                source, target = source_of.get(position), target_of.get(position)
                sent, received = [], []

                def send() -> None:
                    if target not in (None, position):
                        sent.append(wire.send(wire.flatten(value), *link(index, group[target], index)))

                def receive() -> None:
                    if source not in (None, position):
                        link_to_source = link(group[source], index, index)
                        received.append(members.receive(shape_of(value), value.dtype, *link_to_source))

                # Neither waits for the other: a ring of receives that wait for sends would deadlock. Between GPUs the
                # second waits, so all members need one order of the messages: first those sent by even positions.
                keys = [(each % 2, each) for each in (position, position if source is None else source)]
                for act in (send, receive) if keys[0] <= keys[1] else (receive, send):
                    act()
                if received:
                    return received[0]
                with tf.control_dependencies(sent):
                    return tf.zeros_like(value) if source is None else tf.identity(value)

            return self._on_devices(member)

        return self._run(body, values, axis, "permute", tuple(map(tuple, pairs)))

    def _exchange_sizes(self, values: list[tf.Tensor], axis: str, dim: int) -> list[tf.Tensor] | None:
        if self.mesh.num_processes == 1 and not tf.executing_eagerly():
            static = dict(zip(self.local_indices, [value.shape[dim] for value in values], strict=True))
            groups = [{static[index] for index in group} for group in self.mesh.groups(axis)]
            if all(len(group) == 1 and None not in group for group in groups):
                return None

        def body(tensors: list[tf.Tensor]) -> list[tf.Tensor]:
            link = self._links(axis)
            return self._on_devices(lambda i, index: members.gather_size(tensors[i], *link[index], dim))

        return self._run(body, values, axis, "exchange_sizes", dim)

    def _channel(self, axis: str, source: int, target: int, num_messages: int) -> Channel:
        if tf.executing_eagerly():
            raise ValueError(
                "Make channels inside a tf.function: eagerly, a send would block before its receive is posted. Use "
                "permute instead."
            )
        sends: list[Link] = []
        receives: list[Link] = []
        for group in self.mesh.groups(axis):
            if {group[source], group[target]} & set(self.local_indices):
                pairs, ordinal = self._pair(group[source], group[target], num_messages)
                for links, index in ((sends, group[source]), (receives, group[target])):
                    if index in pairs:
                        links.append((self._device(self.local_indices.index(index)), pairs[index], ordinal))
        return RuntimeChannel(sends, receives, num_messages)

    def _device(self, local: int) -> str:
        return self._devices[local]

    def _make_group(self, key: int, members: Sequence[int], index: int) -> wire.CollectiveGroup:
        """Returns a group as seen by its local member `index`."""

        def full_name(position: int) -> tuple[int, str, int]:
            index = members[position]
            spec = tf.DeviceSpec.from_string(_with_slash(self.mesh.devices[index]))
            return self.mesh.ranks[index], spec.device_type, spec.device_index

        wire_order = tuple(sorted(range(len(members)), key=full_name))
        on_gpus = any(is_gpu(self.mesh.devices[member]) for member in members)
        device = self._device(self.local_indices.index(index)) if on_gpus else None
        hint = _HINTS_ON_GPUS[self._implementation] if on_gpus else self._implementation
        ranks = tuple(self.mesh.ranks[member] for member in members)
        return wire.CollectiveGroup(key, len(members), wire_order, hint, ranks, self._watchdog.ledger, device)

    def _take_ordinals(self, key: int, count: int) -> int:
        with self._lock:
            first = self._next_ordinal[key]
            self._next_ordinal[key] += count
        return first

    def _links(self, axis: str, count: int = 1) -> dict[int, tuple[wire.CollectiveGroup, int]]:
        """Returns for each local flat index its group along `axis` and the first of `count` new ordinals in it."""
        groups = {index: self._groups[axis, index] for index in self.local_indices}
        ordinals = {key: self._take_ordinals(key, count) for key in sorted({g.key for g in groups.values()})}
        return {index: (group, ordinals[group.key]) for index, group in groups.items()}

    def _pair(self, source: int, target: int, num_messages: int) -> tuple[dict[int, wire.CollectiveGroup], int]:
        """Returns a group of two by local member, and the first of `num_messages` new ordinals in it."""
        key = self._first_pair_key + source * self.mesh.size + target
        ends = [index for index in (source, target) if index in self.local_indices]
        groups = {index: self._make_group(key, (source, target), index) for index in ends}
        return groups, self._take_ordinals(key, num_messages)

    def _sizes_in(self, tensors: list[tf.Tensor]) -> Sequence[tf.Tensor | None]:
        """Returns the sizes that follow the values in a body's arguments, or one None per value if there are none."""
        num_local = len(self.local_indices)
        return tensors[num_local:] or [None] * num_local

    def _run(
        self,
        body: _Body,
        tensors: list[tf.Tensor],
        axis: str,
        *key: object,
        static: tf.TensorShape | None = None,
    ) -> list[tf.Tensor]:
        """Runs `body`, in a traced function if the caller is eager.

        Eagerly the ops of several devices would run one after the other, and each would wait for the next. One
        function is used for all shapes, unless `static` is the shape of all members: thus ranks with different
        shapes still trace in the same order.
        """
        if self.mesh.axis_size(axis) == 1 and key[0] not in ("permute", "exchange_sizes"):
            return tensors[: len(self.local_indices)]
        if not tf.executing_eagerly():
            return body(tensors)
        specs = [tf.TensorSpec(static or [None] * tensor.shape.rank, tensor.dtype) for tensor in tensors]
        cache_key = (axis, *key, *((spec.dtype, spec.shape.rank) for spec in specs), str(static))
        with self._lock:
            function = self._eager_functions.get(cache_key)
        with self._watchdog.ledger.eagerly():
            if function is None:
                traced = tf.function(lambda *args: body(list(args)), autograph=False)
                function = traced.get_concrete_function(*specs)
                with self._lock:
                    self._eager_functions[cache_key] = function
            return list(function(*tensors))


def _end_all(why: str) -> None:
    """Fails all pending and all later collectives of this process."""
    eager_context.context().abort_collective_ops(tf.errors.DEADLINE_EXCEEDED, why)


def _with_slash(device: str) -> str:
    device = device or "CPU:0"
    return device if device.startswith("/") else f"/device:{device}"


def _find_device(device: str) -> str:
    """Returns the full name of a device of this process: in a cluster, a short name may mean another task's device."""
    wanted = tf.DeviceSpec.from_string(_with_slash(device))
    own = list_own_devices()
    for name in own:
        spec = tf.DeviceSpec.from_string(name)
        if (spec.device_type, spec.device_index) == (wanted.device_type, wanted.device_index):
            return name
    raise ValueError(f"This process has no device {device!r}. It has: {own}.")
