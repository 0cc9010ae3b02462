"""Collective ops in the function being traced: the handles of their state, and their order among other ops.

Handles are hidden from strategies and checkpoints.
"""

from __future__ import annotations

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
