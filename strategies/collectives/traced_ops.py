"""Collective ops in the function being traced: the handles of their state, and their order among other ops.

Handles are hidden from strategies and checkpoints.
"""

from __future__ import annotations

import weakref

import tensorflow as tf


def make_handle(name: str, dtype: tf.DType, device: str = "CPU:0") -> tf.Tensor:
    """Returns a variable handle. Not a tf.Variable, which would become distributed in a strategy's scope.

    Args:
        name: unique in this process.
        dtype: the dtype of the value.
        device: the device of the value.
    """
    with tf.device(device):
        return tf.raw_ops.VarHandleOp(dtype=dtype, shape=tf.TensorShape(None), shared_name=name)


def capturable(handle: tf.Tensor) -> tf.Tensor:
    """Returns the handle as captured by the function being traced, which gradients of loops and branches need."""
    # Inside tf.init_scope code runs eagerly, although the default graph is still that of the enclosing function.
    if tf.executing_eagerly():
        return handle
    graph = tf.compat.v1.get_default_graph()
    # No public name; tf.distribute finds the function in the same way (TensorFlow 2.21).
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph.capture(handle) if hasattr(graph, "capture") else handle


def run_beside_others(op: tf.Operation | None) -> None:
    """Excludes an op of the function being traced from the order of stateful ops; it runs even if its result is unused.

    Automatic control dependencies would serialise collective ops, although each one waits for its counterparts on other
    members.
    """
    # No public name: an attribute of the graph being traced (TensorFlow 2.21), absent from graphs without automatic
    # control dependencies, such as those of gradients.
    manager = getattr(tf.compat.v1.get_default_graph(), "experimental_acd_manager", None)
    if manager is not None and not tf.executing_eagerly():
        manager.run_independently(op)


class IndependentOps:
    """Records the ops of a graph that :func:`run_beside_others` excludes, until they are added to another graph."""

    def __init__(self) -> None:
        self.names: list[str] = []

    def run_independently(self, op: tf.Operation) -> None:
        """Records an op, as TensorFlow's manager of automatic control dependencies does."""
        self.names.append(op.name)


class Order:
    """The first and the last collective of each device in each function that is being traced, by their names.

    An op would keep its graph alive, and so its own entry.
    """

    def __init__(self) -> None:
        self._ends: weakref.WeakKeyDictionary[tf.Graph, dict[str, tuple[str, str]]] = weakref.WeakKeyDictionary()

    def last(self, device: str) -> list[tf.Operation]:
        """Returns the last collective of a device in the function that is being traced, if there is one."""
        graph = tf.compat.v1.get_default_graph()
        ends = self._ends.get(graph, {}).get(device)
        return [] if ends is None else [graph.get_operation_by_name(ends[1])]

    def note(self, device: str, first: tf.Operation, last: tf.Operation) -> None:
        """Records the ops with which the next collective of a device begins and ends."""
        self._extend(tf.compat.v1.get_default_graph(), device, first.name, last.name)

    def names(self, graph: tf.Graph) -> set[str]:
        """Returns the names of the ops with which the collectives of a graph begin and end."""
        return {name for ends in self._ends.get(graph, {}).values() for name in ends}

    def continue_in(self, traced: tf.Graph, caller: tf.Graph) -> None:
        """Orders the collectives of a graph in another one, to which its ops have been added under their names."""
        for device, (first, last) in self._ends.pop(traced, {}).items():
            before = self._ends.get(caller, {}).get(device)
            if before is not None:
                caller.get_operation_by_name(first)._add_control_inputs([caller.get_operation_by_name(before[1])])
            self._extend(caller, device, first, last)

    def _extend(self, graph: tf.Graph, device: str, first: str, last: str) -> None:
        ends = self._ends.setdefault(graph, {})
        ends[device] = ends.get(device, (first, last))[0], last


#: The order of the ops of this process.
ORDER = Order()
