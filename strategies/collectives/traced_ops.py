"""Collective ops in the function being traced: the handles of their state, and their order among other ops.

Handles are hidden from strategies and checkpoints. A dependency of the step is a tensor that is computed before any of
its collectives starts.
"""

from __future__ import annotations

import contextlib
import contextvars
from collections.abc import Iterator

import tensorflow as tf

_dependency: contextvars.ContextVar[tf.Tensor | None] = contextvars.ContextVar(
    "keras_strategies_step_dependency", default=None
)


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


@contextlib.contextmanager
def collectives_after(dependency: tf.Tensor | None) -> Iterator[None]:
    """Runs the block with a control dependency, unless None, for all collectives that cannot be cancelled.

    A process that finds an error ends its step at once, but cannot cancel what it has submitted to Horovod: that would
    wait for a peer that has ended its step, too. The contract is tested in
    ``tests/strategies/processes/spanning_refusals.py``.
    """
    token = _dependency.set(dependency)
    try:
        yield
    finally:
        _dependency.reset(token)


def step_dependencies() -> list[tf.Tensor]:
    """Returns [dependency] if it belongs to the graph being traced, else []: callers of nested functions order them."""
    dependency = _dependency.get()
    is_in_graph = (
        dependency is not None and not tf.executing_eagerly() and dependency.graph is tf.compat.v1.get_default_graph()
    )
    return [dependency] if is_in_graph else []
