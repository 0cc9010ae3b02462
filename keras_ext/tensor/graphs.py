"""Finds the layers of a model, by path, and the layers that follow them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any

import keras

from keras_ext.tensor.custom_layers import graph_inside, is_custom, is_graph, layers_inside


def layers_of(model: Any, prefix: str = "") -> Iterator[tuple[str, Any]]:
    """Yields path and layer of all layers, also of nested models; a custom layer comes before its inner layers."""
    for layer in model.layers:
        if not isinstance(layer, keras.layers.InputLayer):
            yield from _with_layers_inside(f"{prefix}{layer.name}", layer)


def _with_layers_inside(path: str, layer: Any) -> Iterator[tuple[str, Any]]:
    if is_graph(layer):
        yield from layers_of(layer, f"{path}/")
        return
    yield path, layer
    if is_custom(layer):
        for name, inner in layers_inside(layer):
            yield from _with_layers_inside(f"{path}/{name}", inner)


def graphs_of(model: Any) -> Iterator[Any]:
    """Yields the graph of a model, and those of models inside it.

    Raises:
        ValueError: one of the models has no graph.
    """
    graph = getattr(model, "_functional", model)
    if not hasattr(graph, "operations"):
        raise ValueError(
            "Only Sequential and Functional models can be taken apart. Use the layers of keras_ext in a model of your "
            f"own class. Received: {model!r}, of class {type(model).__name__}."
            if not isinstance(model, keras.Sequential)
            else f"Build the model first: begin it with a keras.Input. Received: {model.name!r}, which is not built."
        )
    yield graph
    for layer in model.layers:
        if isinstance(layer, (keras.Sequential, keras.Model)) and not is_custom(layer):
            yield from graphs_of(layer)


def followers_in(graph: Any, paths: Mapping[int, str]) -> dict[str, str]:
    """Returns, by path, the path of the only layer that uses a layer's output, where both are called once."""
    users: dict[int, list[int]] = {}
    calls: dict[int, int] = {}
    for nodes in graph._nodes_by_depth.values():
        for node in nodes:
            calls[id(node.operation)] = calls.get(id(node.operation), 0) + 1
            for tensor in node.input_tensors:
                # Tensors from outside the graph have no history.
                if getattr(tensor, "_keras_history", None) is not None:
                    users.setdefault(id(tensor._keras_history.operation), []).append(id(node.operation))
    for tensor in keras.tree.flatten(graph.outputs):
        if getattr(tensor, "_keras_history", None) is not None:
            users.setdefault(id(tensor._keras_history.operation), []).append(0)
    return {
        paths[before]: paths[after[0]]
        for before, after in users.items()
        if len(after) == 1 and before in paths and after[0] in paths and calls[before] == calls[after[0]] == 1
    }


def followers_inside(layer: Any, paths: Mapping[int, str]) -> dict[str, str]:
    """Returns the same as `followers_in` for the layers that a custom layer holds."""
    found: dict[str, str] = {}
    if not is_custom(layer):
        return found
    with graph_inside(layer) as graph:
        if graph is not None:
            found |= followers_in(graph, paths)
        for _, inner in layers_inside(layer):
            found |= followers_inside(inner, paths)
            for inner_graph in graphs_of(inner) if is_graph(inner) and inner.built else ():
                found |= followers_in(inner_graph, paths)
    return found
