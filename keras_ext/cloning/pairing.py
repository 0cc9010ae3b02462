"""Pairs the layers of a model with those of its copy, by position."""

from __future__ import annotations

from typing import Any

import keras

from keras_ext.tensor.custom_layers import is_graph
from keras_ext.tensor.gathered import GatheredWeights
from keras_ext.tensor.layer import SplitLayer


def pairs(old: Any, new: Any) -> list[tuple[Any, Any]]:
    """Returns each layer in a layer or model, itself first, with the layer at the same position in a copy.

    Where the copy has a layer of another class, or with another number of inner layers, inner layers are left out,
    except that those of a split copy are paired by their attributes' names.
    """
    found: dict[int, tuple[Any, Any]] = {}

    def walk(one: Any, other: Any) -> None:
        if id(one) in found:
            return
        found[id(one)] = (one, other)
        if is_graph(one) and is_graph(other):
            walk_all(one.layers, other.layers)
        # A pipeline of a task is of a subclass of the task's class.
        is_staged = is_graph(one) and isinstance(other, one.__class__)
        if one.__class__ is other.__class__ or is_staged or isinstance(other, GatheredWeights):
            walk_all(_layers_beside(one), _layers_beside(other))
        elif isinstance(other, SplitLayer):
            # A split layer holds the plain layer's inner layers under the same names, except those it does not need.
            for name, inner in vars(one).items():
                its = vars(other).get(name)
                if isinstance(inner, keras.Layer) and isinstance(its, keras.Layer):
                    walk(inner, its)

    def walk_all(some: list[Any], others: list[Any]) -> None:
        for pair in zip(some, others, strict=True) if len(some) == len(others) else ():
            walk(*pair)

    walk(old, new)
    return list(found.values())


def _layers_beside(layer: Any) -> list[Any]:
    """Returns the inner layers that are in no graph, in the order in which they were made attributes."""
    of_graph = {id(inner) for inner in layer.layers} if is_graph(layer) else set()
    return [inner for inner in layer._layers if id(inner) not in of_graph]
