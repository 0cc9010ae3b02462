"""Protects Horovod's ops in traced functions from graph optimisation, which treats them as pure functions.

Horovod does not mark its ops as stateful. Consequences (measured with TensorFlow 2.21, Horovod 0.28.1):

- An op with constant inputs is constant-folded: it runs once, while the graph is optimised.
- Two ops with the same inputs are merged, although their names differ.
- An op whose result is unused is pruned, even with a control edge from it. Its peers then hang.
- Executions of one op overlap in a loop, or if a function is called twice, and Horovod refuses a name that is
  already in flight.

`Fence.pin` prevents the first two: the input passes through a slice whose start, always 0, is read from a variable
and therefore unknown to the optimiser; it copies no bytes. `Fence.keep` prevents the others: one element of the output
is assigned to a variable of that op. Assignments are stateful: they run, and assignments to the same variable run in
program order. Different ops stay independent of each other.
"""

from __future__ import annotations

import tensorflow as tf

from strategies.collectives.descriptions import step_dependencies
from strategies.collectives.traced_ops import capturable, make_handle


class Fence:
    """Protects the ops of one instance of the collectives.

    Args:
        prefix: unique in this process; the names of the variables start with it.
    """

    def __init__(self, prefix: str) -> None:
        with tf.init_scope():
            self._zero = make_handle(f"{prefix}_zero", tf.int32)
            tf.raw_ops.AssignVariableOp(resource=self._zero, value=tf.constant(0))

    def pin(self, value: tf.Tensor) -> tf.Tensor:
        """Returns the value, of at least one dimension, as an input that the optimiser neither folds nor merges."""
        resource = capturable(self._zero)
        with tf.device("CPU:0"):
            with tf.control_dependencies(step_dependencies()):
                zero = tf.raw_ops.ReadVariableOp(resource=resource, dtype=tf.int32)
            begin = tf.fill([value.shape.rank], zero)
        pinned = tf.slice(value, begin, [-1] * value.shape.rank)
        pinned.set_shape(value.shape)
        return pinned

    def keep(self, output: tf.Tensor, name: str) -> None:
        """Makes the op of `output` run even if its result is unused, and its executions run one after the other.

        Args:
            output: any output of the op.
            name: the op's name, unique in this process.
        """
        graph = tf.compat.v1.get_default_graph()
        sample = tf.reshape(output, [-1])[:1]
        with tf.device("CPU:0"):
            # Created outside the function: as a capture it also orders several calls of the function.
            with tf.init_scope():
                handle = make_handle(name, sample.dtype)
            assignment = tf.raw_ops.AssignVariableOp(resource=capturable(handle), value=sample)
        # No public name: absent from graphs without automatic control dependencies, such as those of gradients. These
        # prune even stateful ops, unless they are control outputs.
        if getattr(graph, "experimental_acd_manager", None) is None and hasattr(graph, "control_outputs"):
            graph.control_outputs.append(assignment)
