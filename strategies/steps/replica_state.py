"""State that each replica writes alone, such as moving statistics: synchronized before the step ends."""

from __future__ import annotations

import math
import weakref
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies.batches import shares
from strategies.batches.shares import Share
from strategies.collectives.process_group import ProcessGroup
from strategies.steps.context import StepContext
from strategies.steps.replica_copies import ReplicaCopies
from strategies.steps.variables import ReplicaStateVariable


class ReplicaWrites:
    """The variables that each replica writes alone, in the running step and in functions traced earlier."""

    def __init__(self) -> None:
        self._in_functions: list[weakref.ref[ReplicaStateVariable]] = []

    def note(self, variable: ReplicaStateVariable, context: StepContext, *, by_program: bool = False) -> None:
        """Records that a replica wrote ``variable`` in the step of `context`."""
        context.written[variable.ref()] = variable
        context.agreed.discard(variable.ref())
        share = shares.current()
        if share is not None:
            key = (share.replica_id, variable.ref())
            graph = None if tf.executing_eagerly() else tf.compat.v1.get_default_graph()
            before, _ = context.pending.get(key, (False, None))
            context.pending[key] = by_program or before, graph
        if share is not None and share.in_inner_function and all(v is not variable for v in self._written_inside()):
            alive = [each for each in self._in_functions if each() is not None]
            self._in_functions = [*alive, weakref.ref(variable)]

    def list_written(self, context: StepContext) -> list[ReplicaStateVariable]:
        """Returns the variables written in the step, also by functions called in it, and not synchronized since."""
        inside = self._written_inside()
        if inside and not tf.executing_eagerly():
            used = {outside.ref() for outside, _ in tf.compat.v1.get_default_graph().captures}
            inside = [variable for variable in inside if variable.values[0].handle.ref() in used]
        found = {variable.ref(): variable for variable in inside} | context.written
        # A function that was traced earlier writes at an unknown time: synchronizing once more does no harm.
        in_functions = {variable.ref() for variable in inside}
        return [variable for ref, variable in found.items() if ref in in_functions or ref not in context.agreed]

    def _written_inside(self) -> list[ReplicaStateVariable]:
        return [variable for each in self._in_functions if (variable := each()) is not None]


def agree(
    written: Sequence[ReplicaStateVariable],
    local_shares: Sequence[Share],
    process_group: ProcessGroup,
    copies: ReplicaCopies | None = None,
) -> None:
    """Sets the components of each variable to their mean over all replicas, weighted by rows.

    Args:
        written: the variables that a replica wrote alone in this step.
        local_shares: the shares of this process' replicas, one per component.
        process_group: the group of the processes that hold replicas.
        copies: given if one local replica is traced for all.
    """
    if local_shares[0].num_replicas == 1:
        return
    for vector in state_vectors(written, copies):
        with tf.device(vector.devices[0]):
            if process_group.num_processes == 1:
                mean = local_mean(vector.read(), local_shares)
            else:
                mean = process_group.sum([vector.term_of_mean(local_shares)])[0]
        vector.assign(mean)


@dataclass(frozen=True)
class StateVector:
    """Variables of one dtype on the same devices, reduced as one vector: a deep network has a hundred small ones.

    Attributes:
        variables: at least one.
        copies: given if one local replica is traced for all.
    """

    variables: Sequence[ReplicaStateVariable]
    copies: ReplicaCopies | None = None

    @property
    def devices(self) -> list[str]:
        """The device of each local replica's components."""
        return [component.device for component in self.variables[0].values]

    def read(self) -> list[tf.Tensor]:
        """Returns the vector of each local replica, on its device."""

        def read(replica: int) -> tf.Tensor:
            return tf.concat([tf.reshape(each.values[replica].read_value(), [-1]) for each in self.variables], axis=0)

        return self._by_each(read)

    def term_of_mean(self, local_shares: Sequence[Share]) -> tf.Tensor:
        """Returns this process' term of ``sum(weight * value)`` over all replicas."""
        vectors = self.read()
        with tf.device(self.devices[0]):
            term = tf.zeros_like(vectors[0])
            for share, vector in zip(local_shares, vectors, strict=True):
                term += tf.math.multiply_no_nan(vector, tf.cast(share.weight, vector.dtype))
            return term

    def assign(self, mean: tf.Tensor) -> None:
        """Assigns a vector to all local replicas' components."""
        sizes = [math.prod(variable.shape) for variable in self.variables]

        def assign(replica: int) -> None:
            for variable, part in zip(self.variables, tf.split(mean, sizes), strict=True):
                variable.values[replica].assign(tf.reshape(part, variable.shape))

        self._by_each(assign)

    def _by_each(self, run: Callable[[int], Any]) -> list[Any]:
        """Calls a function for each local replica, with its index, on its device; returns the results."""
        devices, copies = self.devices, self.copies

        def on_device(replica: int) -> Any:
            with tf.device(devices[replica]):
                return run(replica)

        if copies is None:
            return [on_device(r) for r in range(len(devices))]
        copies.begin()
        first = on_device(0)
        copies.end()
        return [copies.for_replica(first, r) for r in range(len(devices))]


def state_vectors(written: Sequence[ReplicaStateVariable], copies: ReplicaCopies | None = None) -> list[StateVector]:
    """Groups the variables by dtype and devices."""
    kinds: dict[Any, list[ReplicaStateVariable]] = {}
    for variable in written:
        kinds.setdefault((variable.dtype, *variable._devices), []).append(variable)
    return [StateVector(alike, copies) for alike in kinds.values()]


def local_mean(vectors: Sequence[tf.Tensor], local_shares: Sequence[Share]) -> tf.Tensor:
    """Returns ``first + sum(weight * (other - first))``: components that are already equal keep their bits."""
    first, *others = vectors
    mean = first
    for share, other in zip(local_shares[1:], others, strict=True):
        mean += tf.math.multiply_no_nan(other - first, tf.cast(share.weight, first.dtype))
    return mean
