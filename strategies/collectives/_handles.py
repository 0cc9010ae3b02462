"""Small variables of our own that the ops of collectives touch, out of sight of strategies and checkpoints."""

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
    # Where a function lifts something out of itself the code is eager, but its graph is still the default one.
    if tf.executing_eagerly():
        return handle
    graph = tf.compat.v1.get_default_graph()
    # No public name; tf.distribute finds the function in the same way (TensorFlow 2.21).
    while getattr(graph, "is_control_flow_graph", False):
        graph = graph.outer_graph
    return graph.capture(handle) if hasattr(graph, "capture") else handle
