"""Reads of sharded weights: each gathers a whole weight, in a step for as long as its unit is unsharded.

The picture in `units` has the order of the calls, and the numbers that stand here.
"""

from __future__ import annotations

import contextlib
import functools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import get_current_replica_id_as_int, pywrap_tfe
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark, mark_shard
from strategies.batches.shares import NotAlikeError
from strategies.replica import graph_lifetimes
from strategies.replica.deferred import in_shapes_only
from strategies.replica.pass_context import pass_context
from strategies.replica.recording import unrecorded
from strategies.sharding.all_gather import AllGather
from strategies.sharding.backward_gathers import BackwardGathers, consumers
from strategies.sharding.units import ReplicaUnit, ReplicaUnits, Unit
from strategies.sharding.variables import ShardedVariable, own_range
from strategies.steps.context import StepContext
from strategies.steps.layout import local_values
from strategies.steps.step import Steps


class _Watched:
    """A fake variable for a tape: gradients with respect to it are those of the gathered tensor of a weight."""

    def __init__(self, variable: ShardedVariable, tensor: tf.Tensor) -> None:
        self.handle = tensor
        self.trainable = variable.trainable
        self._variable = variable

    def ref(self) -> Any:
        """Returns the weight's reference: ``tf.custom_gradient`` passes the weights it reads on by their references."""
        return self._variable.ref()


class WeightGathers:
    """Gathers weights, and keeps the gathered tensors of each step.

    Args:
        steps: the steps of the replicas.
        all_gather: all-gathers whole weights.
    """

    def __init__(self, steps: Steps, all_gather: AllGather) -> None:
        self._steps = steps
        #: All-gathers whole weights.
        self.all_gather = all_gather

    def in_step(self) -> bool:
        """Returns True in a replica of a running step."""
        return bool(self._steps.context.shares) and tf.distribute.get_replica_context() is not None

    def read(self, variable: ShardedVariable) -> tf.Tensor:
        """Returns the whole weight, on the reading replica's device or outside replicas."""
        tensor = self.handle_of(variable)
        own = self._steps.context.weights.get(get_current_replica_id_as_int())
        value = None if own is None else own.assigned.get(id(variable))
        # Done at each read: the tape that records the read may not have been recording when the weight was set.
        return tensor if value is None else _with_value(tensor, value)

    def assign(self, variable: ShardedVariable, value: tf.Tensor) -> None:
        """Sets a weight in a replica: the replicas synchronize and each writes its shard; later reads return the value.

        Gradients with respect to the weight are those of all reads in the step, as with a variable.

        Raises:
            ValueError: if several groups of replicas hold the shards, which would differ if the groups' values do; or
                in a stage whose weights are gathered for each pass.
        """
        if self.all_gather.has_several_groups:
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

        def assign_shards(_: Any, values: Any) -> None:
            for component, owner, own in zip(variable.values, variable.owners, local_values(values), strict=True):
                with tf.device(component.device):
                    component.assign(own_range(own, *variable.bounds[owner], component.shape), read_value=False)

        tf.distribute.get_replica_context().merge_call(assign_shards, args=(value,))
        self._own(get_current_replica_id_as_int(), self._steps.context).assigned[id(variable)] = value

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
        own = self._own(replica, context)
        placeholders = None if variable.unit.is_small or context.graph is None else pass_context().placeholders
        if placeholders is not None:
            if context.copies is not None:
                # Shards that are read once for all replicas would wait for passes that wait for them.
                raise NotAlikeError("weights in shards are gathered for each pass of a pipeline")
            with unrecorded(), _in_graph(context.graph):
                unshard = functools.partial(self._unshard_for_pass, own.get(variable.unit, for_passes=True), context)
                tensor = placeholders.get(variable, variable.unit, unshard)
                mark(tensor, Kind.SAME)
        else:
            unit = own.get(variable.unit)
            if id(variable) not in unit.handles:
                with unrecorded(), _in_graph(context.graph):
                    self._unshard(unit, own, context)
            tensor = unit.handles[id(variable)]
        if variable.shard is not None:
            mark_shard(tensor, variable.shard)
        watched = _Watched(variable, tensor)
        pywrap_tfe.TFE_Py_TapeVariableAccessed(watched)
        # For tf.custom_gradient, and so tf.recompute_grad, which otherwise leaves out the weight's gradient.
        pywrap_tfe.TFE_Py_VariableWatcherVariableAccessed(watched)
        return tensor

    def _unshard(self, unit: ReplicaUnit, own: ReplicaUnits, context: StepContext) -> None:
        """Unshards a unit for its first read [1], and keeps the tensors for all others [2]."""
        large = own.large(unit.unit.devices)
        is_delayed = context.graph is not None and len(large) > 1 and not unit.unit.is_small
        after = consumers(large[-2].handles.values()) if is_delayed else []
        # A weight that is created in the step joins a unit that may be unsharded already.
        new = [each for each in unit.unit.members if id(each) not in unit.handles]
        # Some may be weights of another model, which the program may delete before it calls the traced step.
        graph_lifetimes.hold(new)
        unit.unshard(self.all_gather, new, after, self._peers(unit, context))
        unit.weights += new
        unit.handles |= zip(map(id, new), unit.wait_for_unshard(), strict=True)
        if unit not in own.used:
            own.used.append(unit)

    def _unshard_for_pass(
        self, unit: ReplicaUnit, context: StepContext, variables: Sequence[ShardedVariable]
    ) -> list[Any]:
        """Unshards weights of a unit for one pass of a stage; only the pass gets the tensors."""
        unit.unshard(self.all_gather, variables, (), self._peers(unit, context))
        values = unit.wait_for_unshard()
        unit.reshard()
        return values

    def _own(self, replica: int | None, context: StepContext) -> ReplicaUnits:
        own: ReplicaUnits = context.weights.setdefault(replica, ReplicaUnits(replica or 0))
        return own

    def _peers(self, unit: ReplicaUnit, context: StepContext) -> list[ReplicaUnit]:
        """Returns a unit on the other local replicas, if a copy from there saves messages between processes."""
        others = context.weights.items() if self.all_gather.crosses_processes else ()
        return [own.get(unit.unit, for_passes=unit.for_passes) for replica, own in others if replica != unit.replica]

    def reshard(self) -> None:
        """Reshards all units after an update; gradients of what was read before can still be taken."""
        weights = self._steps.context.weights
        for replica, own in weights.items():
            weights[replica] = own.resharded()

    def sources(self, variable: ShardedVariable, source: Any) -> list[Any]:
        """Returns the tensors read before updates and the weight: its gradient is the sum of those of all of them.

        A program may update a critic before it takes the gradients of the generator. The weight itself is left out if
        it was read before updates only: its gradient would only gather it.

        Args:
            variable: the weight.
            source: the weight as the program has it, such as a Keras variable.
        """
        own: ReplicaUnits | None = self._steps.context.weights.get(get_current_replica_id_as_int())
        earlier = [] if own is None else own.earlier.get(id(variable), [])
        if own is None or not earlier:
            return [source]
        return [*earlier, source] if id(variable) in own.get(variable.unit).handles else earlier

    def pre_backward(self, *, is_last: bool) -> None:
        """Records which ops exist when a replica takes its first gradient.

        Args:
            is_last: True if this ends the forward pass. Where passes alternate, as in a pipeline, weights stay from
                their first use to the step's end: they are gathered once for all micro-batches.
        """
        context = self._steps.context
        own: ReplicaUnits | None = context.weights.get(get_current_replica_id_as_int())
        if own is None or not own.used or context.graph is None or own.stay or own.num_forward_ops is not None:
            return
        own.stay = not is_last
        if is_last:
            own.num_forward_ops = len(context.graph.get_operations())

    def end_backward(self) -> None:
        """Changes the backward pass of a replica that is traced for all, before a merge call in which gradients meet.

        Ops that are made in the merge call belong to all replicas. Where each replica is traced, the merge call changes
        the backward pass.
        """
        if self._steps.context.copies is not None:
            self._unshard_for_backward(None)

    def unshard_for_backward(self, reduce: Callable[[Unit], Sequence[tf.Operation]] | None = None) -> None:
        """Reshards units, and unshards them again for the backward pass [3] [4]. Call it once the gradient ops exist.

        Args:
            reduce: starts the reduce-scatter of a unit's gradients over the processes, and returns the ops that end it.
                Later gathers wait for these ops, so that gradients do not queue behind gathers of weights.
        """
        if self._steps.context.copies is None:
            self._unshard_for_backward(reduce)

    def _unshard_for_backward(self, reduce: Callable[[Unit], Sequence[tf.Operation]] | None) -> None:
        context = self._steps.context
        if context.graph is None or tf.compat.v1.get_default_graph() is not context.graph:
            return
        is_first = True
        for own in context.weights.values():
            if own.num_forward_ops is None:
                continue
            backward = frozenset(context.graph.get_operations()[own.num_forward_ops :])
            gathers = BackwardGathers(backward, self.all_gather, reduce if is_first else None)
            # Each part of a replica has two units in memory at a time.
            for devices in dict.fromkeys(unit.unit.devices for unit in own.used):
                units = own.large(devices)
                gathers.run(units, None if is_first else [self._peers(unit, context) for unit in units])
            is_first = not self.all_gather.crosses_processes


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
