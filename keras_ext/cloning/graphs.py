"""Copies of Sequential and Functional models with other layers, the same graph and the same order of weights."""

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
        model: a built model, or a Sequential that is not built.
        clone: returns the replacement of a layer or operation; called once for each layer and operation.
        call: calls what `clone` returned, in a Functional model.
    """
    inputs = None if isinstance(model, keras.Sequential) else keras.tree.pack_sequence_as(model.input, _inputs(model))
    with _not_compiled(model):
        copy = keras.models.clone_model(model, inputs, clone_function=clone, call_function=call)
    if not isinstance(model, keras.Sequential):
        like = {id(one): other for one, other in pairs(model, copy)}
        put_in_order(copy, [like.get(id(layer)) for layer in counted_layers(model)])
    return copy


def init_graph(model: Any, *graph: Any, **kwargs: Any) -> None:
    """Initializes a model as Keras' own class does, whose constructor takes a graph; a user's may take anything.

    Keras' constructor builds the model. It does so without the `build` of a user's class: what that has made is copied
    with the other attributes.

    Args:
        model: a model without attributes, of a class of Sequential or Functional models.
        *graph: the arguments of the constructor of Keras' class.
        **kwargs: further arguments.
    """
    base: Any = next(each for each in type(model).__mro__ if each.__module__.startswith("keras."))
    wrapped = vars(model)["build"]

    def build(*shapes: Any) -> None:
        base.build(model, *shapes)
        model.built = True

    vars(model)["build"] = build
    try:
        base.__init__(model, *graph, **kwargs)
    finally:
        vars(model)["build"] = wrapped


def counted_layers(model: Any) -> list[Any]:
    """Returns the layers of a model, with inner layers, in the order in which its weights are counted.

    A layer of the graph may also be inside another layer, which is an attribute of the model and no node of the graph.
    """
    return [inner for layer in model._layers for inner in layer._flatten_layers()]


def put_in_order(model: Any, layers: list[Any]) -> None:
    """Makes a model count its weights in the order of `layers`; layers that are not in the list come last.

    Keras counts in the order of the graph, or of the attributes if the model's class sets layers as attributes, as in
    KerasHub.
    """
    positions: dict[int, int] = {}
    for position, layer in enumerate(layers):
        positions.setdefault(id(layer), position)
    layer_api.sort_layers(model, key=lambda layer: positions.get(id(layer), len(positions)))


def input_of(model: Any) -> list[Any]:
    """Returns a list of one input like the model's first; an empty list if it has no input yet, or is not a model."""
    inputs = getattr(model, "inputs", None) or ()
    return [keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype) for tensor in inputs[:1]]


def _inputs(graph: Any) -> list[Any]:
    """Returns inputs like those of a Functional model. Keras' own copies are neither optional nor sparse."""
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
    """Runs the block with a model that looks uncompiled. Keras would compile the copy by its config, which may fail."""
    before, model.compiled = model.compiled, False
    try:
        yield
    finally:
        model.compiled = before
