"""Keeps the Python functions that graphs call for as long as the graphs exist, and no longer.

TensorFlow keeps two kinds of these functions until the process ends. They refer to tensors, and so keep all operations
of every step that was ever traced: several megabytes for each model that was made, trained and dropped.

* The gradients of ``tf.custom_gradient`` in a graph, which Keras' crossentropies use, are in a registry, each under its
  own name, and are never removed. They are looked up by that name when the gradient of an already traced function is
  made, or when the function is saved. Here the registry refers to them weakly.
* ``tf.numpy_function`` stores its function in the outermost graph, which is the process' own.

Here each function is held by the graph that is being traced and by the graphs around it: an inner graph may be freed
and rebuilt from its definition while the outer one still needs its gradient. Graphs of strategies of other packages,
and graphs made without a strategy, are left alone.
"""

from __future__ import annotations

import contextlib
import functools
import weakref
from collections.abc import Callable, Iterator
from typing import Any

import tensorflow as tf

from strategies._tf_internals import RegisterGradient, gradient_registry

# The attribute of a graph in which TensorFlow keeps its functions.
_KEPT = "_py_funcs_used_in_graph"
_HELD = "_keras_strategies_functions"
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
        _hold(gradient)
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
def numpy_functions_held() -> Iterator[None]:
    """Context manager: functions passed to ``tf.numpy_function`` are kept only as long as the graph that calls them."""
    outermost = _outermost()
    before = len(getattr(outermost, _KEPT, ()))
    yield
    if _graphs():
        kept = getattr(outermost, _KEPT)
        for function in kept[before:]:
            _hold(function)
        del kept[before:]


def _hold(function: Callable[..., Any]) -> None:
    for graph in _graphs():
        if not hasattr(graph, _HELD):
            setattr(graph, _HELD, [])
        getattr(graph, _HELD).append(function)


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
