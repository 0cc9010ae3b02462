"""Keeps Horovod's ops whole inside traced functions: TensorFlow takes them for pure functions of their inputs.

Horovod does not mark its ops as stateful. What comes of it (measured with TensorFlow 2.21, Horovod 0.28.1):

- An op whose inputs are constants runs once, while the graph is optimised; its result stays for ever.
- Two ops with the same inputs become one, although their names differ.
- An op whose result nobody uses disappears, also where a control edge asks for it. Its peers then hang.
- Runs of one op overlap in a loop, or where a function is called twice, and Horovod refuses a name that is
  in flight already.

`Fence.pin` ends the first two: the input passes through a slice whose start, always 0, is read from a variable
and so known to no optimiser; it moves no bytes. `Fence.keep` ends the others: one element of the output is
assigned to a variable of the op's own. Assignments are stateful: they run, and what assigns to one variable
runs in the order of the program. Ops that differ stay free of each other.
"""

from __future__ import annotations

import tensorflow as tf

from strategies.collectives.handles import capturable, make_handle


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
        """The value, of one dimension at least, as an op's input that is neither constant nor shared."""
        with tf.device("CPU:0"):
            zero = tf.raw_ops.ReadVariableOp(resource=capturable(self._zero), dtype=tf.int32)
            begin = tf.fill([value.shape.rank], zero)
        pinned = tf.slice(value, begin, [-1] * value.shape.rank)
        pinned.set_shape(value.shape)
        return pinned

    def keep(self, output: tf.Tensor, name: str) -> None:
        """Let the op that made `output` run whether or not anybody uses it, and one run after the other.

        Args:
            output: any output of the op.
            name: the op's, unique in this process.
        """
        graph = tf.compat.v1.get_default_graph()
        sample = tf.reshape(output, [-1])[:1]
        with tf.device("CPU:0"):
            # Made outside: captured, it lets the calls of a function that holds this op wait for each other.
            with tf.init_scope():
                handle = make_handle(name, sample.dtype)
            assignment = tf.raw_ops.AssignVariableOp(resource=capturable(handle), value=sample)
        # No public name: absent from graphs that put nothing in sequence, such as those of gradients. There
        # even what is stateful is dropped, unless the graph is told to run it.
        if getattr(graph, "experimental_acd_manager", None) is None and hasattr(graph, "control_outputs"):
            graph.control_outputs.append(assignment)
