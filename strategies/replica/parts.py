"""The devices that one replica of a model spans, as its layers see them.

A replica is one copy of the model. On a mesh with axes beside "data" it spans several devices, its parts; the k-th
parts of all replicas differ along "data" only. A process owns some parts, or all. A layer that is split creates each of
its variables at a position on an axis, and computes with the parts that this process owns, forward and backward. A
variable without a position on an axis is the same at all positions: each process that owns one of them holds one copy.
Under other strategies, and without a strategy, a replica has one part.
"""

from __future__ import annotations

import contextlib
import dataclasses
import math
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tf_internals import UpdateContext, get_current_replica_id_as_int
from strategies.collectives.fixed_order import sum_in_order
from strategies.collectives.process_groups import ProcessGroups
from strategies.frozen_context import FrozenContext
from strategies.replica.axis_mappings import AxisMappings
from strategies.replica.passes import Passes, Recompute
from strategies.replica.recording import compute_on
from strategies.replica.slices import added
from strategies.topology.devices import full_name, short_name
from strategies.topology.mesh import DeviceMesh
from strategies.topology.placement import local_grid, owned_parts, replica_mesh

#: Coordinates: positions by the name of the axis. A variable without one on an axis is the same at all positions.
Coordinates = Mapping[str, frozenset[int]]


class ReplicaParts:
    """The devices of a replica's parts, and the placement of variables and computations on them.

    Parts are numbered in row-major order of the mesh's axes other than "data".

    Args:
        mesh: the mesh of one replica: the axes other than "data", over the devices of all processes that it spans.
        grid: device names as ``[local replica][owned part]``.
        owned: the parts that this process owns, ascending.
        groups: the process groups of this process.
    """

    def __init__(
        self, mesh: DeviceMesh, grid: Sequence[Sequence[str]], owned: Sequence[int], groups: ProcessGroups
    ) -> None:
        self.mesh = mesh
        self.owned = tuple(owned)
        #: The process groups of this process.
        self.groups = groups
        self._grid = tuple(tuple(row) for row in grid)
        self._local = threading.local()
        self._used_axes: set[str] = set()

    @classmethod
    def from_process(
        cls, mesh: DeviceMesh, devices: Sequence[str], rank: int = 0, groups: ProcessGroups | None = None
    ) -> ReplicaParts:
        """Returns the parts of the replicas that process `rank` takes part in; `devices` are all of its devices."""
        names = {short_name(device): full_name(device) for device in devices}
        grid = [[names[device] for device in row] for row in local_grid(mesh, rank)]
        return cls(replica_mesh(mesh, rank), grid, owned_parts(mesh, rank), groups or ProcessGroups())

    # ---- coordinates

    @property
    def coordinates(self) -> Coordinates:
        """The coordinates at which variables are created now: empty outside of :meth:`at`."""
        return getattr(self._local, "coordinates", {})

    @contextlib.contextmanager
    def at(self, **positions: int | Collection[int]) -> Iterator[None]:
        """Context manager: variables are created at positions on mesh axes, as in ``at(pipe=1)``, ``at(tensor=0)``.

        A process that owns a part at these coordinates creates one component in each of its replicas, on the device of
        the first such part; on other processes, the variable takes no memory. If an axis has no position here, all
        processes along it create a component.

        Args:
            **positions: one or several positions by axis; an axis that the mesh does not have has the position 0.
        """
        self._used_axes |= positions.keys()
        with self._at(positions):
            yield

    @contextlib.contextmanager
    def _at(self, positions: Mapping[str, int | Collection[int]]) -> Iterator[None]:
        before = self.coordinates
        own = {axis: frozenset([at] if isinstance(at, int) else at) for axis, at in positions.items()}
        self._local.coordinates = {**before, **own}
        try:
            yield
        finally:
            self._local.coordinates = before

    @property
    def idle_axes(self) -> tuple[str, ...]:
        """The axes along which no layer has placed anything: all devices but the first along them compute nothing."""
        return tuple(name for name, size in self.mesh.axes.items() if size > 1 and name not in self._used_axes)

    def local_part(self, coordinates: Coordinates | None = None) -> int | None:
        """Returns the first part that this process owns at these coordinates (by default the current ones), or None."""
        return next(
            (part for part in self.owned if self.is_at(part, self.coordinates if coordinates is None else coordinates)),
            None,
        )

    def along(self, axis: str) -> tuple[int, ...]:
        """Returns the first part at the current coordinates and all that differ from it along `axis` only."""
        others = {name: at for name, at in self.coordinates.items() if name != axis}
        first = next(part for part in range(self.mesh.size) if self.is_at(part, others))
        return self.mesh.group(first, axis)

    def owner(self, part: int) -> int:
        """Returns the rank of the process that owns a part of this process' replica."""
        return self.mesh.ranks[part]

    def crosses(self, axis: str) -> bool:
        """Returns True if the parts along `axis` belong to several processes."""
        return axis in self.groups.model

    def between(self, axis: str) -> AxisMappings | None:
        """Returns the mappings between the processes along `axis`; None if it does not cross processes."""
        if not self.crosses(axis) or self.groups.collectives is None:
            return None
        return AxisMappings(self.groups.collectives, axis)

    def process_at(self, axis: str, position: int) -> int:
        """Returns the index, along `axis`, of the process that owns the parts at a position on it."""
        group = self.groups.model.get(axis)
        return 0 if group is None else position * group.num_processes // self.mesh.axis_size(axis)

    def num_processes(self, axis: str) -> int:
        """Returns the number of processes that own the parts along `axis`."""
        group = self.groups.model.get(axis)
        return 1 if group is None else group.num_processes

    @property
    def spans_processes(self) -> bool:
        """True if the parts of a replica belong to several processes."""
        return self.groups.spans_processes

    def is_at(self, part: int, coordinates: Coordinates) -> bool:
        """Returns True if a part is at these coordinates."""
        return all(self.mesh.position(part, axis) in positions for axis, positions in coordinates.items())

    # ---- devices

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices of all parts, such as "CPU:0", with their ranks if they belong to several processes."""
        names = [name.rpartition("device:")[2] for name in self.mesh.devices]
        if not self.spans_processes:
            return tuple(names)
        return tuple(f"rank {rank} {name}" for rank, name in zip(self.mesh.ranks, names, strict=True))

    def part_devices(self, part: int) -> tuple[str, ...]:
        """Returns the devices of one owned part, one for each local replica."""
        return tuple(row[self.owned.index(part)] for row in self._grid)

    @property
    def rank(self) -> int:
        """This process' rank; 0 if it is alone."""
        return self.groups.job.rank

    @property
    def replica(self) -> int:
        """The index, in this process, of the running replica; 0 outside of replicas."""
        return int(get_current_replica_id_as_int() or 0)

    def device(self, part: int) -> str:
        """Returns the device of a part in the running replica; in the first one, outside of replicas.

        It is "" for a part that another process owns: its computations are traced for their shapes only.
        """
        if part not in self.owned:
            return ""
        replica = self.replica
        # A strategy of another package may have more replicas than this one.
        row = self._grid[replica] if replica < len(self._grid) else self._grid[0]
        return row[self.owned.index(part)]

    def from_rank_0(self, values: Sequence[Any]) -> list[np.ndarray]:
        """Returns the values of rank 0 on every process: arrays of the shapes and dtypes of ``values``, in their order.

        Use it for values that each process determines by itself but all must agree on. All processes call it.
        """
        arrays = [np.asarray(value) for value in values]
        job = self.groups.job
        return arrays if job.num_processes == 1 else [job.broadcast(tf.constant(array)).numpy() for array in arrays]

    @property
    def owners(self) -> frozenset[int]:
        """The ranks that own the parts of this process' replica."""
        return frozenset(map(self.owner, range(self.mesh.size)))

    def broadcast_last_stage(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns the values of the last stage on all processes along "pipe"; all pass values of the same shapes."""
        group = self.groups.model.get("pipe")
        if group is None or not values:
            return list(values)
        is_last = group.rank == group.num_processes - 1
        return group.sum([value if is_last else tf.zeros_like(value) for value in values])

    @contextlib.contextmanager
    def as_first_replica(self) -> Iterator[None]:
        """Context manager for use outside of replicas: variables are the first local replica's, for reading only."""
        with UpdateContext(0) if tf.distribute.has_strategy() else contextlib.nullcontext():
            yield

    def fan_out(self, value: Any, part: int, count: int) -> list[tf.Tensor]:
        """Returns `count` copies of ``value``; their gradients are summed on the device of `part`."""
        if count == 1:
            return [tf.convert_to_tensor(value)]
        device = self.device(part)

        @tf.custom_gradient
        def copies(tensor: tf.Tensor) -> tuple[list[tf.Tensor], Callable[..., tf.Tensor]]:
            def backward(*upstream: tf.Tensor) -> tf.Tensor:
                with tf.device(device):
                    return sum_in_order(upstream)

            return [tf.identity(tensor) for _ in range(count)], backward

        with tf.device(device):
            copied: list[tf.Tensor] = copies(tf.convert_to_tensor(value))
        return copied

    @contextlib.contextmanager
    def on(self, part: int) -> Iterator[None]:
        """Context manager: variables are created at the part's position on "pipe"; ops default to its device."""
        with (
            self._at({"pipe": self.mesh.position(part, "pipe")}),
            contextlib.nullcontext() if self.mesh.size == 1 else tf.device(self.device(part)),
        ):
            yield

    def passes(
        self,
        part: int,
        function: Callable[..., Sequence[Any]],
        variables: Sequence[Any],
        *,
        recompute: Recompute | tuple[Callable[[], list[Any]], Callable[..., Sequence[Any]]] | None = None,
        in_line: bool = True,
        reshard: bool = False,
        sums: bool = False,
    ) -> Passes:
        """Returns the forward pass of `function` in `part`; a call returns the outputs and the vjp, also in `part`.

        Args:
            part: one of this replica's parts.
            function: takes tensors, returns tensors.
            variables: the TensorFlow variables that `function` reads and whose gradients may be asked for.
            recompute: recomputes `function` in the backward pass, so that its intermediate tensors are not held until
                then. Two functions: the first, called before the computation, returns as tensors the state that changes
                with each call, such as seeds; the second takes this state as a list, and the inputs, returns the
                outputs, and has no side effects.
            in_line: if False, both passes are functions in the graph, whose ops exist once for any number of calls.
            reshard: sharded weights are gathered for each pass and freed after it. Both passes are functions then.
                Without sharded weights it has no effect.
            sums: gradients of variables are terms of sums, which are rounded as one device rounds the sum.
        """
        recomputation = Recompute(*recompute) if recompute else None
        return Passes(lambda: self.on(part), function, variables, recomputation, in_line, reshard, sums)

    def added(self, part: int, gradients: Sequence[Any]) -> Any:
        """Returns the sum of gradients (tensors or slices of rows) in order, made in `part`; None if there are none."""
        with self.on(part):
            return added(gradients)

    def run(self, part: int, function: Callable[..., Any], *inputs: Any) -> Any:
        """Returns ``function(*inputs)``, computed on the device of `part`, as is its gradient.

        Args:
            part: one of this replica's parts.
            function: takes the tensors, returns one or a list; must be differentiable in floating-point ones.
            inputs: tensors, or variables, which are read on the device of `part`. Nothing else that `function` reads
                gets a gradient.
        """
        if self.mesh.size == 1:
            return function(*(tf.convert_to_tensor(value) for value in inputs))
        return compute_on(self.device(part), function, inputs)


#: Returned by `current_parts` where a replica has one part.
_WHOLE = ReplicaParts(DeviceMesh.from_devices([""]), [[""]], [0], ProcessGroups())


def engine_attribute(strategy: tf.distribute.Strategy, name: str) -> Any:
    """Returns an attribute of a strategy's engine; None if the strategy is not one of this package's.

    For modules below the engine, which cannot import its class.
    """
    return getattr(getattr(strategy.extended, "engine", None), name, None)


@dataclasses.dataclass(frozen=True)
class _Outside:
    """Holds the parts of a replica outside of the strategies of this package."""

    parts: ReplicaParts = _WHOLE


_outside = FrozenContext("keras_strategies_parts", _Outside())


def current_parts() -> ReplicaParts:
    """Returns the parts of a replica under the strategy in whose scope this is called."""
    parts = engine_attribute(tf.distribute.get_strategy(), "parts")
    return parts if isinstance(parts, ReplicaParts) else _outside.get().parts


def planned_parts(axes: Mapping[str, int]) -> contextlib.AbstractContextManager[None]:
    """Context manager: outside of any strategy, a replica has the parts of a mesh; no part needs a device.

    Models can be split and cut into stages in it. All that is computed is computed on the host.

    Args:
        axes: the sizes of the axes "pipe" and "tensor" of the mesh, in this order.
    """
    count = math.prod(axes.values())
    mesh = DeviceMesh.from_devices([f"planned:{part}" for part in range(count)], axes)
    return _outside.changing(parts=ReplicaParts(mesh, [["CPU:0"] * count], range(count), ProcessGroups()))
