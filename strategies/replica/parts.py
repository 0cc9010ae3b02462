"""The devices over which one replica of a model is spread, as its layers see them.

A replica is one copy of the model. On a mesh with axes beside "data" it spans several devices, its parts; part k of
all replicas is a column of the mesh. A process owns some parts, or all. A layer that is split creates each of its
variables at its position on an axis, and computes with those of the parts that this process owns, forward and backward.
What has no position on an axis is the same at all of them: every process that owns one holds a copy, once. Under other
strategies, and without one, a replica has one part.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tf_internals import UpdateContext, get_current_replica_id_as_int
from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark, mark_summed
from strategies.batches.row_warnings import warn_of
from strategies.collectives.fixed_order import sum_in_order
from strategies.collectives.process_groups import ProcessGroups
from strategies.replica.axis_mappings import AxisMappings
from strategies.replica.graph_lifetimes import numpy_functions_held
from strategies.replica.passes import Passes, Recompute
from strategies.replica.traced_passes import added
from strategies.topology.devices import full_name, short_name
from strategies.topology.mesh import DeviceMesh
from strategies.topology.placement import local_grid, owned_parts, replica_mesh

#: Positions on axes, by the name of the axis. What has none on an axis is the same at all of them.
Place = Mapping[str, frozenset[int]]


class ReplicaParts:
    """The devices of a replica's parts, and the placement of variables and computations on them.

    Parts are numbered in row-major order of the mesh's axes other than "data".

    Args:
        mesh: of one replica: the axes that it has beside "data", over the devices of all processes that it spans.
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

    @classmethod
    def of_process(
        cls, mesh: DeviceMesh, devices: Sequence[str], rank: int = 0, groups: ProcessGroups | None = None
    ) -> ReplicaParts:
        """The parts of the replicas that process `rank` takes part in; `devices` are all of its devices."""
        names = {short_name(device): full_name(device) for device in devices}
        grid = [[names[device] for device in row] for row in local_grid(mesh, rank)]
        return cls(replica_mesh(mesh, rank), grid, owned_parts(mesh, rank), groups or ProcessGroups())

    # ---- places

    @property
    def here(self) -> Place:
        """The place at which variables are created now: none in particular, unless inside :meth:`at`."""
        return getattr(self._local, "place", {})

    @contextlib.contextmanager
    def at(self, **positions: int | Collection[int]) -> Iterator[None]:
        """Inside, variables are created at positions on mesh axes: ``at(pipe=1)``, ``at(tensor=0)``.

        Each process that owns a part there creates one component on the device of the first such part in each of its
        replicas; on others, a variable takes no memory. Without a position on an axis, all processes along it have one.

        Args:
            **positions: one or several on an axis; an axis that the mesh does not have has the position 0.
        """
        before = self.here
        own = {axis: frozenset([at] if isinstance(at, int) else at) for axis, at in positions.items()}
        self._local.place = {**before, **own}
        try:
            yield
        finally:
            self._local.place = before

    def home(self, place: Place | None = None) -> int | None:
        """Returns the first part at a place, the present one if None, that this process owns; None if there is none."""
        return next((part for part in self.owned if self.is_at(part, self.here if place is None else place)), None)

    def along(self, axis: str) -> tuple[int, ...]:
        """The parts that differ along `axis` only from the first one at the present place; that one included."""
        here = {name: at for name, at in self.here.items() if name != axis}
        first = next(part for part in range(self.mesh.size) if self.is_at(part, here))
        return self.mesh.group(first, axis)

    def owner(self, part: int) -> int:
        """Returns the rank of the process that owns a part of this process' replica."""
        return self.mesh.ranks[part]

    def crosses(self, axis: str) -> bool:
        """True if the parts along `axis` belong to several processes."""
        return axis in self.groups.model

    def between(self, axis: str) -> AxisMappings | None:
        """The mappings between the processes along `axis`; None if it does not cross processes."""
        if not self.crosses(axis) or self.groups.collectives is None:
            return None
        return AxisMappings(self.groups.collectives, axis)

    def process_at(self, axis: str, position: int) -> int:
        """Returns which of the processes along `axis` owns the parts at a position on it."""
        group = self.groups.model.get(axis)
        return 0 if group is None else position * group.num_processes // self.mesh.axis_size(axis)

    @property
    def spans_processes(self) -> bool:
        """True if the parts of a replica belong to several processes."""
        return self.groups.spans_processes

    def is_at(self, part: int, place: Place) -> bool:
        """True if a part is at a place."""
        return all(self.mesh.position(part, axis) in positions for axis, positions in place.items())

    # ---- devices

    @property
    def device_names(self) -> tuple[str, ...]:
        """The devices of all parts, such as "CPU:0", with their ranks if they are of several processes."""
        names = [name.rpartition("device:")[2] for name in self.mesh.devices]
        if not self.spans_processes:
            return tuple(names)
        return tuple(f"rank {rank} {name}" for rank, name in zip(self.mesh.ranks, names, strict=True))

    def column(self, part: int) -> tuple[str, ...]:
        """The devices of one owned part, one for each local replica."""
        return tuple(row[self.owned.index(part)] for row in self._grid)

    @property
    def rank(self) -> int:
        """This process' rank; 0 if it is alone."""
        return 0 if self.groups.job is None else self.groups.job.rank

    @property
    def replica(self) -> int:
        """The index, in this process, of the running replica; 0 outside of replicas."""
        return int(get_current_replica_id_as_int() or 0)

    def device(self, part: int) -> str:
        """The device of a part of the replica that is running; of the first one, outside of replicas.

        Of a part that another process owns, no device: what is computed there is traced for its shapes only.
        """
        if part not in self.owned:
            return ""
        replica = self.replica
        # A foreign strategy's replicas may be more than ours.
        row = self._grid[replica] if replica < len(self._grid) else self._grid[0]
        return row[self.owned.index(part)]

    def from_rank_0(self, values: Sequence[Any]) -> list[np.ndarray]:
        """Returns what rank 0 has, on every process: arrays of the shapes and dtypes of ``values``, in their order.

        For what processes find out for themselves, and have to agree on. All of them call it.
        """
        arrays = [np.asarray(value) for value in values]
        job = self.groups.job
        return arrays if job is None else [job.broadcast(tf.constant(array)).numpy() for array in arrays]

    @property
    def owners(self) -> frozenset[int]:
        """The ranks that hold the parts of this process' replica."""
        return frozenset(map(self.owner, range(self.mesh.size)))

    def of_last_stage(self, values: Sequence[tf.Tensor]) -> list[tf.Tensor]:
        """Returns what the processes of the last stage have, on all processes along "pipe", each of its shape."""
        group = self.groups.model.get("pipe")
        if group is None or not values:
            return list(values)
        is_last = group.rank == group.num_processes - 1
        return group.sum([value if is_last else tf.zeros_like(value) for value in values])

    @contextlib.contextmanager
    def as_first_replica(self) -> Iterator[None]:
        """Inside, outside of replicas, variables are those of the first local replica, to be read and not changed."""
        with UpdateContext(0) if tf.distribute.has_strategy() else contextlib.nullcontext():
            yield

    def fan_out(self, value: Any, part: int, count: int) -> list[tf.Tensor]:
        """Returns `count` tensors equal to ``value``, for so many users; the gradient is their sum, made in `part`."""
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
        """Inside, variables are created at the part's position on "pipe", and ops are on its device by default."""
        with (
            self.at(pipe=self.mesh.position(part, "pipe")),
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
        """Returns the forward pass of `function` in `part`, which gives its backward pass there with its outputs.

        Args:
            part: one of this replica's parts.
            function: takes tensors, returns tensors.
            variables: TensorFlow's, that `function` reads and of which gradients can be had.
            recompute: computes it a second time for the backward pass, so that nothing that it makes is held until
                then: a function that returns tensors which tell what changes with each call, such as the seeds of
                draws, called before the computation; and one that takes these as a list, and the inputs, returns the
                outputs, and changes nothing.
            in_line: else both passes stay functions in the graph, whose ops are there once, however often called.
            reshard: weights in shards are gathered for each pass, and dropped behind it. Both passes are functions
                then; without such weights it is nothing.
            sums: gradients of variables are terms of sums, which are rounded as one device rounds the sum.
        """
        again = Recompute(*recompute) if recompute else None
        return Passes(lambda: self.on(part), function, variables, again, in_line, reshard, sums)

    def traced(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, of tensors, as one function in a graph, traced once for each set of shapes.

        Called where ops run as they are called, its ops are launched by TensorFlow's threads, and not from Python.
        """
        traced: Callable[..., Any] = tf.function(function, autograph=False)
        return traced

    def in_graph(self, function: Callable[..., Any]) -> Callable[..., Any]:
        """Returns `function`, of tensors, which runs in a graph also where ops run as they are called."""
        traced = self.traced(function)
        return lambda *tensors: traced(*tensors) if tf.executing_eagerly() else function(*tensors)

    def host_callback(self, part: int, function: Callable[[], None], after: Sequence[Any]) -> tf.Tensor:
        """Calls a Python function when tensors are there, each time they are.

        Args:
            part: in which the tensors are.
            function: is called in any thread.
            after: tensors.

        Returns:
            A scalar 0 that is there when the function has been called. Unless it is used, the function may not be.
        """

        def tell(*_: Any) -> Any:
            function()
            return np.float32(0)

        # A value of each: without one, TensorFlow would drop the edges, or not wait for a device that works behind.
        firsts = [tf.reshape(value, [-1])[:1] for value in after if not isinstance(value, tf.IndexedSlices)]
        with tf.device("CPU:0"), numpy_functions_held():
            # Not stateful: TensorFlow would have all such calls wait for each other.
            done = tf.numpy_function(tell, firsts, tf.float32, stateful=False)
        done.set_shape([])
        return done

    def added(self, part: int, gradients: Sequence[Any]) -> Any:
        """Returns the sum of gradients in their order, made in `part`; None of none. They may be slices of rows."""
        with self.on(part):
            return added(gradients)

    def in_microbatches(self, batch: Any, num_rows: Collection[int]) -> contextlib.AbstractContextManager[None]:
        """Inside, this replica computes its batch, a nest of tensors, in micro-batches.

        Args:
            batch: of the replica.
            num_rows: of the micro-batches, as far as they are known beforehand.
        """
        return shares.in_microbatches(batch, num_rows)

    def split_into(self, number: int) -> contextlib.AbstractContextManager[None]:
        """Inside, what this replica computes has the rows of one of `number` micro-batches."""
        return shares.split_into(number)

    def as_constant(self, value: Any) -> Any:
        """Says that a tensor is a factor that does not depend on what is in the rows, as their number; returns it."""
        return mark(value, Kind.SAME)

    def as_mean_over_rows(self, value: Any) -> Any:
        """Says that a tensor is a mean over this replica's rows, put together of micro-batches; returns it."""
        return mark(value, Kind.MEAN)

    def as_weighed(self, upstream: Any) -> Any:
        """Returns the gradient of a loss, times what this replica's rows weigh in the batch of Keras' trainer."""
        share = shares.current()
        return upstream if share is None or not share.in_trainer else share.weigh(upstream)

    def as_mean(self, loss: Any, rows_share: Any) -> Any:
        """Returns what a layer added to the loss in a micro-batch, as a term of a mean that is weighed by rows.

        Args:
            loss: if a sum over rows, it is divided by the micro-batch's share of them.
            rows_share: of the micro-batch in those of this replica; float or float scalar.
        """
        kind = shares.dependence_here().kind(loss)
        warn_of(kind, "A loss that a layer adds")
        if kind is not Kind.SUM:
            return mark(tf.identity(loss), Kind.MEAN)
        return mark(tf.math.divide_no_nan(loss, tf.cast(rows_share, loss.dtype)), Kind.SUM)

    def sum_over_replicas(self, value: Any) -> tf.Tensor:
        """Returns the sum of what all replicas have, which has no gradient; `value` itself outside of replicas."""
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return tf.stop_gradient(value)
        return context.all_reduce(tf.distribute.ReduceOp.SUM, tf.stop_gradient(value))

    def sum_over_rows(self, value: Any) -> tf.Tensor:
        """Returns the sum of what the replicas that have rows of their own made of them; it has no gradient.

        It is a factor, the same on all replicas: what is multiplied by it stays a mean over rows, or a sum.

        Args:
            value: counts, or other sums over the replica's rows, in floating point.
        """
        return mark_summed(tf.identity(self.sum_over_replicas(_of_own_rows(value))))

    def sum_over_rows_before(self, value: Any) -> tf.Tensor:
        """Returns the sum of what the replicas made of rows that come before this one's in the global batch.

        Args:
            value: as :meth:`sum_over_rows` takes it.
        """
        context = tf.distribute.get_replica_context()
        if context is None or context.num_replicas_in_sync == 1:
            return tf.zeros_like(value)
        share = shares.current()
        index = context.replica_id_in_sync_group if share is None else share.replica_id
        number = context.num_replicas_in_sync
        # As a sum, of which each replica has one row: an all-gather of so few numbers is not quicker.
        own = tf.reshape(tf.one_hot(index, number, dtype=value.dtype), [number, *[1] * len(value.shape)])
        every = self.sum_over_replicas(own * _of_own_rows(value)[None])
        return tf.reduce_sum(every[:index], axis=0)

    def run(self, part: int, function: Callable[..., Any], *inputs: Any) -> Any:
        """Returns ``function(*inputs)``, computed on the device of `part`, as is its gradient.

        TensorFlow puts the ops of a gradient where the caller of ``tape.gradient`` is, wherever those of the forward
        pass were. Here both stay where the variables are.

        Args:
            part: one of this replica's parts.
            function: takes the tensors, returns one or a list; must be differentiable in floating-point ones.
            inputs: tensors, or variables, which are read there. What `function` reads otherwise gets no gradient.
        """
        if self.mesh.size == 1:
            return function(*(tf.convert_to_tensor(value) for value in inputs))
        device = self.device(part)

        @tf.custom_gradient
        def region(*tensors: tf.Tensor) -> tuple[Any, Callable[..., Any]]:
            watched = [tensor for tensor in tensors if tensor.dtype.is_floating]
            # Persistent, since the tape outside may be.
            with tf.GradientTape(persistent=True) as tape:
                tape.watch(watched)
                outputs = function(*tensors)

            def backward(*upstream: tf.Tensor) -> list[tf.Tensor | None]:
                with tf.device(device):
                    flat = tf.nest.flatten(outputs)
                    found = iter(
                        tape.gradient(flat, watched, list(upstream), unconnected_gradients=tf.UnconnectedGradients.ZERO)
                    )
                    return [next(found) if tensor.dtype.is_floating else None for tensor in tensors]

            return outputs, backward

        with tf.device(device):
            return region(*(tf.convert_to_tensor(value) for value in inputs))


def _of_own_rows(value: Any) -> Any:
    """Returns ``value``, or zeros if the replica has no rows of its own: those that it borrows are another's."""
    share = shares.current()
    return value if share is None else share.keep(value, tf.zeros_like(value))


#: Returned to layers where a replica has one part.
_WHOLE = ReplicaParts(DeviceMesh.from_devices([""]), [[""]], [0], ProcessGroups())


def current_parts() -> ReplicaParts:
    """The parts of a replica under the strategy whose scope this is called in."""
    parts = getattr(tf.distribute.get_strategy().extended, "parts", None)
    return parts if isinstance(parts, ReplicaParts) else _WHOLE
