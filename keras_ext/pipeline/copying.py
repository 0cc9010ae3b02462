"""The graph that a pipeline is made of, and its copy on the devices of stages."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from typing import Any

import keras

import strategies
from keras_ext.pipeline.stage import nodes_of
from keras_ext.tensor.custom import is_custom
from keras_ext.tensor.graphs import copy_seeds
from keras_ext.tensor.layer import SplitLayer


def graph_of(given: Any) -> Any:
    """A Functional model of the layers of a Sequential or Functional model, or of a list of layers.

    Raises:
        ValueError: it has no graph.
    """
    if isinstance(given, (list, tuple)):
        given = keras.Sequential(_with_input(given))
    if isinstance(given, keras.Sequential) and given.built and getattr(given, "inputs", None):
        return keras.Model(given.inputs[0], given.outputs[0], name=given.name)
    if not hasattr(given, "operations"):
        raise ValueError(
            "A pipeline is made of a Sequential or Functional model that is built, or of a list of layers. A "
            f"Sequential, and a list, begin with a keras.Input. Received: {given!r}."
        )
    return given


def _with_input(layers: Sequence[Any]) -> list[Any]:
    """The layers, with the input of the first one before them, if that is a model which has one."""
    inputs = getattr(layers[0], "inputs", None) if layers else None
    if not inputs or isinstance(layers[0], keras.layers.InputLayer):
        return list(layers)
    return [keras.Input(batch_shape=inputs[0].shape, dtype=inputs[0].dtype), *layers]


def copied(graph: Any, parts: strategies.ReplicaParts, part_of: Mapping[str, int]) -> Any:
    """The same model with the variables of each layer in its part.

    Raises:
        ValueError: a layer cannot be copied by its config.
    """

    def clone(layer: Any) -> Any:
        if not isinstance(layer, keras.Layer):
            return layer
        if is_custom(layer) and any(isinstance(inner, SplitLayer) for inner in layer._flatten_layers()):
            raise ValueError(
                f"The layer {layer.name!r} is of a class of its own, and what it holds is split; a pipeline's copy of "
                f"it would not be. Leave it whole: parallelize(model, {{{layer.name!r}: None, ...}}). Received: "
                f"{layer!r}."
            )
        with parts.creating(part_of[layer.name]), _remat_of(layer):
            return type(layer).from_config(layer.get_config())

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        with parts.creating(part_of[layer.name]), _remat_of(layer):
            return layer(*args, **kwargs)

    copy = keras.models.clone_model(graph, clone_function=clone, call_function=call)
    copy.set_weights(graph.get_weights())
    copy_seeds(graph, copy)
    names = [[node.operation.name for node in nodes_of(each)] for each in (graph, copy)]
    if names[0] != names[1]:
        raise ValueError(f"The copy of {graph.name!r} has its layers in another order. Please report this.")
    return copy


def _remat_of(layer: Any) -> contextlib.AbstractContextManager[Any]:
    """The keras.RematScope in which a layer was made, which is no part of its config."""
    mode = getattr(layer, "_remat_mode", None)
    return contextlib.nullcontext() if mode is None else keras.RematScope(**mode._asdict())
