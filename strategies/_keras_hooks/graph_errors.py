"""Errors of a running step show where the program made the op that failed, for ops of all replicas.

TensorFlow looks for the place in the function that failed. It does not know the places of ops that were traced once for
all replicas, see `steps.op_places`.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

from strategies._keras_hooks.wrapping import wrap
from strategies._tf_internals import atomic_function
from strategies.steps.op_places import noted_places


def install() -> None:
    """Wraps the function that writes the messages of errors of graphs."""
    wrap(atomic_function.InterpolateRuntimeError, "interpolate", _with_places, in_step=False)


def _with_places(
    original: Callable[..., str], error: Any, message: str, node_names: Sequence[str], graph_debug_info: Any
) -> str:
    waiting = [error._func]
    while waiting:
        function = waiting.pop()
        waiting += [each for each in function.children if isinstance(each, atomic_function.AtomicFunction)]
        for places in noted_places(function.graph):
            if any(name in places.name_to_trace_id for name in node_names):
                return original(error, message, node_names, places)
    return original(error, message, node_names, graph_debug_info)
