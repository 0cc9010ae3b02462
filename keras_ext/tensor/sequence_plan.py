"""Tensors of a model that can lie in pieces of the sequence, from where they are made to where they are used."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import keras

_NORMALIZATIONS = (keras.layers.LayerNormalization, keras.layers.RMSNormalization)
#: They look at each position by itself, so that pieces of the sequence can pass.
POSITIONWISE = (*_NORMALIZATIONS, keras.layers.Add, keras.layers.Dropout)


def is_addition(operation: Any) -> bool:
    """True if `operation` is ``x + y``, which is no layer."""
    return type(operation).__name__ == "Add" and not isinstance(operation, keras.Layer)


def in_pieces_of_sequences(graph: Any, paths: Mapping[int, str], kinds: Mapping[str, str | None]) -> frozenset[str]:
    """The paths of layers of a graph that leave their output in pieces of the sequence.

    These are attentions and rows of shape ``(batch, length, channels)``, and what looks at each position by itself if
    pieces come to it. Whatever else they come to gets them joined.

    Args:
        graph: of a Functional model.
        paths: of layers, by their `id`.
        kinds: of layers, by path.

    Raises:
        ValueError: a model inside of the model would get some of its inputs in pieces.
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
