"""Runs Python functions as graphs, and calls them from graphs.

The contract of the calls is tested in ``tests/strategies/replica/test_graph_lifetimes.py`` and
``tests/keras_ext/pipeline/test_measured_timeline.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.replica.graph_lifetimes import numpy_functions_held


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, which takes tensors, as a graph function that is traced once for each set of shapes.

    When it is called eagerly, TensorFlow's threads launch its ops, not Python.
    """
    made: Callable[..., Any] = tf.function(function, autograph=False)
    return made


def in_graph(function: Callable[..., Any]) -> Callable[..., Any]:
    """Wraps `function`, which takes tensors, so that eager calls run in a graph, too."""
    graph_function = traced(function)
    return lambda *tensors: graph_function(*tensors) if tf.executing_eagerly() else function(*tensors)


def host_callback(function: Callable[[], None], after: Sequence[Any]) -> tf.Tensor:
    """Calls a Python function on the host each time the given tensors have been computed.

    Args:
        function: may be called in any thread.
        after: the tensors.

    Returns:
        A scalar 0 that is ready when the function has returned. Unless it is used, the function may not be called.
    """

    def call(*_: Any) -> Any:
        function()
        return np.float32(0)

    # Takes one element of each: TensorFlow would drop edges without data, or not wait for an asynchronous device.
    firsts = [tf.reshape(value, [-1])[:1] for value in after if not isinstance(value, tf.IndexedSlices)]
    with tf.device("CPU:0"), numpy_functions_held():
        # Not stateful, since TensorFlow makes stateful calls wait for each other.
        done = tf.numpy_function(call, firsts, tf.float32, stateful=False)
    done.set_shape([])
    return done
