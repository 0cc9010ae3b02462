"""Small variables that the ops of collectives touch, unseen by strategies and checkpoints, and the ops' order."""

from __future__ import annotations

import tensorflow as tf


def make_handle(name: str, dtype: tf.DType) -> tf.Tensor:
    """A handle, on the CPU. Not a tf.Variable, of which a strategy's scope would make a distributed one.

    Args:
        name: unique in this process.
        dtype: of what it will hold.
    """
    with tf.device("CPU:0"):
        return tf.raw_ops.VarHandleOp(dtype=dtype, shape=tf.TensorShape(None), shared_name=name)


def capturable(handle: tf.Tensor) -> tf.Tensor:
    """The handle as a tensor of the traced function around: gradients of loops and branches capture no other."""
    # Inside tf.init_scope the code is eager, but the graph of the function around is still the default one.
    if tf.executing_eagerly():
        return handle
    graph = tf.compat.v1.get_default_graph()
    # No public name; tf.distribute finds the function in the same way (TensorFlow 2.21).
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph.capture(handle) if hasattr(graph, "capture") else handle


def run_beside_others(op: tf.Operation | None) -> None:
    """Let an op of the function being traced run in no sequence, and run even if nobody uses its result.

    Automatic control dependencies would put the ops of collectives one after the other, although each waits for the
    others of its kind elsewhere.
    """
    # No public name: an attribute of the graph being traced (TensorFlow 2.21), absent from graphs that put nothing in
    # sequence, such as those of gradients.
    manager = getattr(tf.compat.v1.get_default_graph(), "experimental_acd_manager", None)
    if manager is not None and not tf.executing_eagerly():
        manager.run_independently(op)
