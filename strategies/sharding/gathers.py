"""Gathers whole weights from shards for as long as a step needs them: unit by unit, in the order of their use.

A unit is a group of weights that were created one after the other, as many as fit in one message. On a replica, the
first read of a weight gathers its unit; later reads in the step get the same tensors, and tapes take gradients with
respect to them. In a graph, the gather of a unit starts after the ops that use the unit two positions earlier: while
one unit is in use, the next is being gathered, and no third takes memory.

Source: the units and the prefetch of torch's FSDP (arXiv:2304.11277).
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import get_current_replica_id_as_int, pywrap_tfe
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.collectives.process_groups import ShardingProcessGroups
from strategies.engine.context import StepContext
from strategies.engine.layout import ReplicaLayout, local_values
from strategies.engine.step import Steps
from strategies.replica.deferred import in_shapes_only
from strategies.replica.pass_context import pass_context
from strategies.replica.refused_gradients import unrecorded
from strategies.sharding.all_gather import AllGather
from strategies.sharding.backward_gathers import BackwardGathers, consumers
from strategies.sharding.units import Unit
from strategies.sharding.variables import ShardedVariable, own_range
from strategies.topology.sharding import ShardingGroups


class _Watched:
    """A fake variable for a tape: gradients with respect to it are those of its tensor."""

    def __init__(self, tensor: tf.Tensor, *, trainable: bool) -> None:
        self.handle = tensor
        self.trainable = trainable


class WeightGathers:
    """Gathers weights, and caches the gathered tensors in each step.

    Args:
        layout: the replicas.
        steps: the steps of these replicas.
        groups: the groups of replicas over which weights are sharded.
        processes: for each owned part, the process groups over which its weights are sharded; empty if this process
            holds all shards.
    """

    def __init__(
        self,
        layout: ReplicaLayout,
        steps: Steps,
        groups: ShardingGroups,
        processes: Sequence[ShardingProcessGroups],
    ) -> None:
        self._layout = layout
        self._steps = steps
        self._groups = groups
        self._processes = processes
        #: All-gathers whole weights.
        self.all_gather = AllGather(layout, steps, groups, processes)

    def in_step(self) -> bool:
        """Returns True in a replica of a running step."""
        return bool(self._steps.context.shares) and tf.distribute.get_replica_context() is not None

    def read(self, variable: ShardedVariable) -> tf.Tensor:
        """Returns the whole weight, on the reading replica's device or outside replicas."""
        tensor = self.handle_of(variable)
        value = self._steps.context.weights.assigned.get((id(variable), get_current_replica_id_as_int()))
        # Done at each read: the tape that records the read may not have been recording when the weight was set.
        return tensor if value is None else _with_value(tensor, value)

    def assign(self, variable: ShardedVariable, value: tf.Tensor) -> None:
        """Sets a weight in a replica: the replicas synchronize and each writes its shard; later reads return the value.

        Gradients with respect to the weight are those of all reads in the step, as with a variable.

        Raises:
            ValueError: if several groups of replicas hold the shards, which would differ if the groups' values do; or
                in a stage whose weights are gathered for each pass.
        """
        if self._groups.size < self._groups.num_replicas:
            raise ValueError(
                "A layer sets a trainable weight of its own in a step, of which each group of replicas has shards "
                "(shard='weights' with shard_size). Leave shard_size out, or use shard='optimizer'. "
                f"Received: {variable.name!r}."
            )
        if pass_context().placeholders is not None:
            raise ValueError(
                "A layer sets a trainable weight of its own in a step, in a stage whose weights are gathered for each "
                f"pass. Leave reshard_after_pass of PipelineModel out. Received: {variable.name!r}."
            )
        replica, weights = get_current_replica_id_as_int(), self._steps.context.weights

        def assign_shards(_: Any, values: Any) -> None:
            for component, owner, own in zip(variable.values, variable.owners, local_values(values), strict=True):
                with tf.device(component.device):
                    component.assign(own_range(own, *variable.bounds[owner], component.shape), read_value=False)

        tf.distribute.get_replica_context().merge_call(assign_shards, args=(value,))
        weights.assigned[id(variable), replica] = value

    def handle_of(self, variable: ShardedVariable) -> tf.Tensor:
        """Returns the tensor with respect to which gradients are taken: the weight as the step found it."""
        replica = get_current_replica_id_as_int()
        context = self._steps.context
        is_inside = _is_inside(context.graph)
        if self.in_step() and context.graph is None and not is_inside and not in_shapes_only():
            raise ValueError(
                "A function that is traced in a step which runs eagerly reads a weight that is in shards "
                "(shard='weights'): its gradient would be lost. Leave run_eagerly out, or have functions run eagerly "
                f"as well (tf.config.run_functions_eagerly). Received: {variable.name!r}."
            )
        if replica is None or not self.in_step() or not is_inside or in_shapes_only():
            return self.all_gather([variable], replica or 0)[0]
        key = (id(variable), replica)
        placeholders = None if variable.unit.is_small or context.graph is None else pass_context().placeholders
        if placeholders is not None:
            with unrecorded(), _in_graph(context.graph):
                tensor = placeholders.get(
                    variable, variable.unit, functools.partial(self._gather_for_pass, replica, context)
                )
                mark(tensor, Kind.SAME)
        else:
            if key not in context.weights.tensors:
                with unrecorded(), _in_graph(context.graph):
                    self._gather_unit(variable.unit, replica, context)
            tensor = context.weights.tensors[key]
        pywrap_tfe.TFE_Py_TapeVariableAccessed(_Watched(tensor, trainable=variable.trainable))
        return tensor

    def _gather_unit(self, unit: Unit, replica: int, context: StepContext) -> None:
        """All-gathers a unit for a replica after the ops that use the unit two positions earlier."""
        before = context.weights.units.setdefault(replica, [])
        large = [values for each, values in before if each.devices == unit.devices and not each.is_small]
        is_delayed = context.graph is not None and len(large) > 1 and not unit.is_small
        after = consumers(large[-2]) if is_delayed else []
        members = unit.members
        values = self._copy_from_replica(members, unit, replica, context)
        if values is None:
            with tf.control_dependencies(after):
                values = self.all_gather(members, replica)
        before.append((unit, values))
        for variable, value in zip(members, values, strict=True):
            context.weights.tensors[id(variable), replica] = value

    def _gather_for_pass(self, replica: int, context: StepContext, variables: Sequence[ShardedVariable]) -> list[Any]:
        """Gathers weights of a unit for one pass of a stage."""
        before = context.weights.for_passes.setdefault(replica, [])
        # All replicas run the same program: of several in this process, the first gathers and the others copy from it.
        others = [context.weights.for_passes.get(other, []) for other in range(self._layout.num_local)]
        known = [own[len(before)] for own in others if len(own) > len(before)] if self._processes else []
        if known and all(one is other for one, other in zip(known[0][0], variables, strict=True)):
            values = self._copied(known[0][1], variables[0].unit.devices[replica])
        else:
            values = self.all_gather(variables, replica)
        before.append((list(variables), values))
        return values

    def _copy_from_replica(
        self, members: Sequence[Any], unit: Unit, replica: int, context: StepContext
    ) -> list[Any] | None:
        """Copies a unit that another local replica has gathered from other processes; returns None if none has."""
        for other in range(self._layout.num_local) if self._processes else ():
            if any(known is unit for known, _ in context.weights.units.get(other, ())):
                known = [context.weights.tensors.get((id(variable), other)) for variable in members]
                return self._copied(known, unit.devices[replica])
        return None

    def note_gradient(self, *, is_last: bool) -> None:
        """Records the ops that exist when a replica takes its first gradient.

        Args:
            is_last: True if this ends the forward pass. Where passes alternate, as in a pipeline, weights stay from
                their first use to the step's end: they are gathered once for all micro-batches.
        """
        replica, context = get_current_replica_id_as_int(), self._steps.context
        if replica in context.weights.units and context.graph is not None and replica not in context.weights.forward:
            names = frozenset(op.name for op in context.graph.get_operations())
            context.weights.forward[replica] = names if is_last else None

    def regather(self, reduce: Callable[[Unit], Sequence[tf.Operation]] | None = None) -> None:
        """Re-gathers weights for the backward pass. Call it once the gradient ops exist.

        The forward pass can then free a unit after its last use, instead of keeping it until the backward pass.

        Args:
            reduce: starts the sum of a unit's gradients over the processes, and returns the ops that end it. Later
                gathers wait for these ops, so that gradients do not queue behind gathers of weights.
        """
        context = self._steps.context
        if context.graph is None or tf.compat.v1.get_default_graph() is not context.graph:
            return
        made: dict[int, Sequence[Any]] = {}
        for replica, gathered in context.weights.units.items():
            forward = context.weights.forward.get(replica)
            if forward is None:
                continue
            if made:
                # Another local replica has gathered the weights; this one copies from it.
                gathers = BackwardGathers(forward, functools.partial(self._copy_gathered, made, replica), None, made)
            else:
                gathers = BackwardGathers(forward, functools.partial(self._gather_members, replica), reduce)
            # Each part of a replica has two units in memory at a time.
            for devices in dict.fromkeys(unit.devices for unit, _ in gathered):
                gathers.run([each for each in gathered if each[0].devices == devices and not each[0].is_small])
            if self._processes and not made:
                made = gathers.made

    def _gather_members(self, replica: int, unit: Unit) -> list[Any]:
        return self.all_gather(unit.members, replica)

    def _copy_gathered(self, made: Mapping[int, Sequence[Any]], replica: int, unit: Unit) -> list[Any]:
        return self._copied(made[id(unit)], unit.devices[replica])

    def _copied(self, values: Sequence[Any], device: str) -> list[Any]:
        with tf.device(device):
            return [None if value is None else tf.identity(value) for value in values]


@tf.custom_gradient
def _with_value(before: tf.Tensor, value: tf.Tensor) -> tuple[tf.Tensor, Callable[..., Any]]:
    """Returns `value` with its gradient routed to `before`, the tensor that it replaces."""
    del before
    return tf.identity(value), lambda upstream: (upstream, None)


def _is_inside(graph: Any) -> bool:
    """Returns True if ops created now may use tensors of `graph`; None means eager tensors."""
    if graph is None:
        return tf.executing_eagerly()
    current: Any = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
    while current is not None and current is not graph:
        current = getattr(current, "outer_graph", None)
    return current is graph


@contextlib.contextmanager
def _in_graph(graph: Any) -> Iterator[None]:
    """Context manager: new ops belong to the step's graph, not to a loop or function in it, without dependencies."""
    if graph is None or tf.compat.v1.get_default_graph() is graph:
        with tf.control_dependencies(None):
            yield
        return
    with graph.as_default(), tf.control_dependencies(None):
        yield
