"""Sequential and Functional models of other layers, with the same graph and the same order of weights."""

from __future__ import annotations

import contextlib
from collections.abc import Callable, Iterator
from typing import Any

import keras

from keras_ext.cloning.pairing import pairs
from strategies import layer_api


def cloned(model: Any, clone: Callable[[Any], Any], call: Callable[..., Any] | None = None) -> Any:
    """Returns a Sequential or Functional model of other layers, not compiled, whose weights are in the same order.

    Args:
        model: built, or a Sequential that is not.
        clone: makes the layer, or the operation, in the place of one; called once for each.
        call: of a Functional model, calls what `clone` made.
    """
    inputs = None if isinstance(model, keras.Sequential) else keras.tree.pack_sequence_as(model.input, _inputs(model))
    with _not_compiled(model):
        copy = keras.models.clone_model(model, inputs, clone_function=clone, call_function=call)
    if not isinstance(model, keras.Sequential):
        like = {id(one): other for one, other in pairs(model, copy)}
        put_in_order(copy, [like.get(id(layer)) for layer in counted_layers(model)])
    return copy


def counted_layers(model: Any) -> list[Any]:
    """Returns the layers of a model, and those in layers, in the order in which its weights are counted.

    A model may have layers of its graph in another layer, too, which is an attribute and no node of the graph.
    """
    return [inner for layer in model._layers for inner in layer._flatten_layers()]


def put_in_order(model: Any, layers: list[Any]) -> None:
    """Has a model count its weights by the order of its layers in a list; those that are not there come last.

    Keras counts by the graph, but by attributes in a model whose class sets layers as such, as those of KerasHub do.
    """
    places: dict[int, int] = {}
    for place, layer in enumerate(layers):
        places.setdefault(id(layer), place)
    layer_api.sort_layers(model, key=lambda layer: places.get(id(layer), len(places)))


def input_of(model: Any) -> list[Any]:
    """An input like the first one of a model; nothing if it has none yet, or is no model."""
    inputs = getattr(model, "inputs", None) or ()
    return [keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype) for tensor in inputs[:1]]


def _inputs(graph: Any) -> list[Any]:
    """Inputs like those of a Functional model; Keras' own copy of one forgets which of them are optional, or sparse."""
    return [
        keras.Input(
            batch_shape=tensor.shape,
            dtype=tensor.dtype,
            sparse=tensor.sparse,
            ragged=tensor.ragged,
            name=layer.name,
            optional=layer.optional,
        )
        for tensor, layer in ((tensor, tensor._keras_history.operation) for tensor in graph.inputs)
    ]


@contextlib.contextmanager
def _not_compiled(model: Any) -> Iterator[None]:
    """Inside, a model looks as if it were not compiled: Keras' copy of it would be, by config, and so not always."""
    before, model.compiled = model.compiled, False
    try:
        yield
    finally:
        model.compiled = before
