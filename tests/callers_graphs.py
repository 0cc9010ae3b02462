"""The graph of the function that calls a step: a step that is traced once has a graph of its own meanwhile."""

from __future__ import annotations

from typing import Any

import tensorflow as tf


def callers_graph(inner: Any = None) -> Any:
    """Returns the outermost graph of the functions around an inner graph, or around what is being traced."""
    graph: Any = inner or tf.compat.v1.get_default_graph()
    while getattr(graph.outer_graph, "building_function", False):
        graph = graph.outer_graph
    return graph
