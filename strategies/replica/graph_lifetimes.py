"""Calls Python functions from graphs, and keeps them for as long as the graphs exist, and no longer.

TensorFlow keeps two kinds of these functions until the process ends. They refer to tensors, and so keep all operations
of every step that was ever traced: several megabytes for each model that was made, trained and dropped.

* The gradients of ``tf.custom_gradient`` in a graph, which Keras' crossentropies use, are in a registry, each under its
  own name, and are never removed. They are looked up by that name when the gradient of an already traced function is
  made, or when the function is saved. Here the registry refers to them weakly.
* ``tf.numpy_function`` stores its function in the outermost graph, which is the process' own.

A graph, on the other hand, refers weakly to the variables that it reads, and cannot be called once one of them is gone.

Here each function, and each variable given to `hold`, is held by the graph that is being traced and by the graphs
around it: an inner graph may be freed and rebuilt from its definition while the outer one still needs its gradient.
Graphs of strategies of other packages, and graphs made without a strategy, are left alone.

The calls are also tested in ``tests/keras_ext/pipeline/test_measured_timeline.py``.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies._tf_internals import RegisterGradient, gradient_registry

# The attribute of a graph in which TensorFlow keeps its functions.
_KEPT = "_py_funcs_used_in_graph"
_HELD = "_keras_strategies_held"
_MARK = "_keras_strategies_original"


def install(is_ours: Callable[[], bool]) -> None:
    """Makes the gradient registry refer weakly to graphs traced while `is_ours()`. A second call does nothing."""
    original = RegisterGradient.__call__
    if hasattr(original, _MARK):
        return

    @functools.wraps(original)
    def register(registration: Any, gradient: Callable[..., Any]) -> Callable[..., Any]:
        if not (_graphs() and is_ours()):
            return original(registration, gradient)
        name = registration._op_type
        original(registration, _weakly(name, gradient))
        hold(gradient)
        return gradient

    setattr(register, _MARK, original)
    RegisterGradient.__call__ = register


def _weakly(name: str, gradient: Callable[..., Any]) -> Callable[..., Any]:
    """Returns a function that calls `gradient` by a weak reference, and whose registry entry goes with `gradient`."""
    held = weakref.ref(gradient, lambda _: gradient_registry._registry.pop(name, None))

    def call(*args: Any) -> Any:
        found = held()
        if found is None:
            raise LookupError(f"the graph whose gradient is {name!r} is gone")
        return found(*args)

    return call


@contextlib.contextmanager
def _numpy_functions_held() -> Iterator[None]:
    """Context manager: functions passed to ``tf.numpy_function`` are kept only as long as the graph that calls them."""
    outermost = _outermost()
    before = len(getattr(outermost, _KEPT, ()))
    yield
    if _graphs():
        kept = getattr(outermost, _KEPT)
        for function in kept[before:]:
            hold(function)
        del kept[before:]


def hold(kept: Any) -> None:
    """Keeps an object for as long as the graph that is being traced, or one of the graphs around it, exists."""
    for graph in _graphs():
        if not hasattr(graph, _HELD):
            setattr(graph, _HELD, [])
        getattr(graph, _HELD).append(kept)


def _graphs() -> list[tf.Graph]:
    """Returns the graphs of functions that are being traced, innermost first."""
    found = []
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "building_function", False):
        found.append(graph)
        graph = graph.outer_graph
    return found


def _outermost() -> tf.Graph:
    graphs = _graphs()
    return graphs[-1].outer_graph if graphs else tf.compat.v1.get_default_graph()


def traced(function: Callable[..., Any]) -> Callable[..., Any]:
    """Returns `function`, which takes tensors, as a graph function that is traced once for each set of shapes.

    When it is called eagerly, TensorFlow's threads launch its ops, not Python.
    """
    # TensorFlow counts traces by the code of a function, and would warn when several closures of one code are traced.
    # The name is that of the function in TensorFlow's profiles; type checkers know no names of partial objects.
    counted_alone = functools.partial(function)
    counted_alone.__name__ = getattr(function, "__name__", "traced")  # type: ignore[attr-defined]
    made: Callable[..., Any] = tf.function(counted_alone, autograph=False)
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
    with tf.device("CPU:0"), _numpy_functions_held():
        # Not stateful, since TensorFlow makes stateful calls wait for each other.
        done = tf.numpy_function(call, firsts, tf.float32, stateful=False)
    done.set_shape([])
    return done


def computed_now(function: Callable[..., Any]) -> tuple[Any, bool]:
    """Returns ``function()``, computed at once also while a graph is traced, and True if it reads variables."""
    with tf.init_scope(), tf.device("CPU:0"):
        # Under `init_scope` no tape sees variables.
        concrete = tf.function(function, autograph=False).get_concrete_function()
        return concrete(), bool(concrete.graph.variables)
