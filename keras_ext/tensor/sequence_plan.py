"""Finds the tensors of a model that can stay in pieces of the sequence between the layers that make and use them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

_NORMALIZATIONS = (keras.layers.LayerNormalization, keras.layers.RMSNormalization)
#: Layers that treat each position by itself, so that pieces of the sequence can pass.
POSITIONWISE = (*_NORMALIZATIONS, keras.layers.Add, keras.layers.Dropout)


def is_addition(operation: Any) -> bool:
    """Returns True if `operation` is ``x + y``, an operation that is not a layer."""
    return type(operation).__name__ == "Add" and not isinstance(operation, keras.Layer)


def in_pieces_of_sequences(graph: Any, paths: Mapping[int, str], kinds: Mapping[str, str | None]) -> frozenset[str]:
    """Returns the paths of layers of a graph that leave their output in pieces of the sequence.

    These are attentions and row-parallel dense layers with outputs of shape ``(batch, length, channels)``, and layers
    that treat each position by itself, if an input is in pieces. For all other layers, pieces are gathered.

    Args:
        graph: of a Functional model.
        paths: the layers' paths, by their `id`.
        kinds: the layers' kinds of split, by path.

    Raises:
        ValueError: a model inside the model, with several inputs, would get some of them in pieces.
    """
    found: set[str] = set()
    pieces: set[int] = set()
    for depth in sorted(graph._nodes_by_depth, reverse=True):
        for node in graph._nodes_by_depth[depth]:
            operation = node.operation
            path = paths.get(id(operation), "")
            arrives = [id(tensor) in pieces for tensor in node.input_tensors]
            if isinstance(operation, keras.Model) and any(arrives) and len(arrives) > 1:
                raise ValueError(
                    f"With sequence_parallel=True the model {operation.name!r} inside of the model, with "
                    f"{len(arrives)} inputs, would get some of them in pieces of the sequence, which Keras refuses. "
                    f"Use its layers in the outer model, or sequence_parallel=False. Received: {operation!r}."
                )
            if _makes_pieces(node, kinds.get(path)) or (any(arrives) and _lets_pass(operation)):
                found.add(path)
                pieces.update(id(tensor) for tensor in node.output_tensors)
    return frozenset(found)


def _makes_pieces(node: Any, kind: str | None) -> bool:
    is_row = kind == "row" and type(node.operation) is keras.layers.Dense
    return (is_row or kind == "heads") and all(len(tensor.shape) == 3 for tensor in node.output_tensors)


def _lets_pass(operation: Any) -> bool:
    if type(operation) in _NORMALIZATIONS:
        return list(operation.axis) in ([-1], [2])
    return type(operation) in POSITIONWISE or is_addition(operation)
