"""Python functions that graphs call, kept for as long as the graphs and no longer.

TensorFlow keeps two kinds of them until the process ends, and with them all operations of every step that was ever
traced, since what such a function remembers are tensors: several megabytes for each model that was made, trained and
dropped.

* The gradients of ``tf.custom_gradient`` in a graph, as Keras' crossentropies use it, are in a registry under a name
  of their own, which nothing takes out again. They are asked for by that name when the gradient of a function that
  was traced before is made, or when it is saved. Here the registry refers to them weakly.
* ``tf.numpy_function`` leaves its function with the outermost graph, which is the process' own.

Each is held by the graph that is being traced and by those around it: a graph inside of another may be gone, and be
made again from its definition, while the outer one still needs its gradient. The graphs of strategies that are not
this package's are left alone, as are those made without one.
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
    """Has the registry of gradients let go of graphs that are traced while `is_ours`. Again does nothing."""
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
    """Returns a function that calls `gradient`, without holding it, and leaves the registry with it."""
    held = weakref.ref(gradient, lambda _: gradient_registry._registry.pop(name, None))

    def call(*args: Any) -> Any:
        found = held()
        if found is None:
            raise LookupError(f"the graph whose gradient is {name!r} is gone")
        return found(*args)

    return call


@contextlib.contextmanager
def numpy_functions_held() -> Iterator[None]:
    """Inside, the functions given to ``tf.numpy_function`` are kept for as long as the graph that calls them."""
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
    """The graphs of functions that are being traced, from the inside out."""
    found = []
    graph = tf.compat.v1.get_default_graph()
    while getattr(graph, "building_function", False):
        found.append(graph)
        graph = graph.outer_graph
    return found


def _outermost() -> tf.Graph:
    graphs = _graphs()
    return graphs[-1].outer_graph if graphs else tf.compat.v1.get_default_graph()
