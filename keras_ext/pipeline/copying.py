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

#: What a class of a user's own may do in its own way, and a pipeline would not.
OWN_WAYS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics", "call")


def graph_of(given: Any) -> Any:
    """A Functional model, not compiled, of the layers of a Sequential or Functional model, or of a list of layers.

    Raises:
        ValueError: it has no graph, or one that cannot be cut by rows.
    """
    if isinstance(given, (list, tuple)):
        given = keras.Sequential(_with_input(given))
    if isinstance(given, keras.Sequential) and given.built and getattr(given, "inputs", None):
        graph = keras.Model(given.inputs[0], given.outputs[0], name=given.name)
    elif not isinstance(given, keras.Sequential) and hasattr(given, "operations"):
        graph = keras.Model(given.input, given.output, name=given.name)
    else:
        raise ValueError(
            "A pipeline is made of a Sequential or Functional model that is built, or of a list of layers. A "
            f"Sequential, and a list, begin with a keras.Input. Received: {given!r}."
        )
    usual = keras.Sequential if isinstance(given, keras.Sequential) else type(graph)
    own = [name for name in OWN_WAYS if getattr(type(given), name) is not getattr(usual, name)]
    if own:
        raise ValueError(
            "A pipeline trains in its own way, and would not use a model's own one. Put a loss of your own into "
            f"compile, or into a layer's add_loss. Received: {type(given).__name__}, which has {', '.join(own)}."
        )
    _check(graph)
    return graph


def _check(graph: Any) -> None:
    for tensor in graph.inputs:
        if getattr(tensor, "sparse", False) or getattr(tensor, "ragged", False):
            raise ValueError(
                f"A pipeline cuts inputs by rows, which sparse and ragged ones do not let it. Received: {tensor!r}."
            )
    for layer in graph._flatten_layers(include_self=False):
        if getattr(layer, "stateful", False) is True:
            raise ValueError(
                "A layer with stateful=True keeps something for each row of a batch, and here sees micro-batches, one "
                f"after the other. Received: {layer.name!r}."
            )


def _with_input(layers: Sequence[Any]) -> list[Any]:
    """The layers, with the input of the first one before them, if that is a model which has one."""
    first = layers[0] if layers else None
    return [*([] if isinstance(first, keras.layers.InputLayer) else input_of(first)), *layers]


def input_of(model: Any) -> list[Any]:
    """An input like the first one of a model; nothing if it has none yet, or is no model."""
    inputs = getattr(model, "inputs", None) or ()
    return [keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype) for tensor in inputs[:1]]


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
            return remade(layer)

    def call(layer: Any, *args: Any, **kwargs: Any) -> Any:
        with parts.creating(part_of[layer.name]), _remat_of(layer):
            return layer(*args, **kwargs)

    # Keras forgets which of them are optional.
    inputs = [
        keras.Input(batch_shape=tensor.shape, dtype=tensor.dtype, name=layer.name, optional=layer.optional)
        for tensor, layer in ((tensor, tensor._keras_history.operation) for tensor in graph.inputs)
    ]
    copy = keras.models.clone_model(
        graph,
        input_tensors=keras.tree.pack_sequence_as(graph.input, inputs),
        clone_function=clone,
        call_function=call,
    )
    copy.set_weights(graph.get_weights())
    copy_seeds(graph, copy)
    # The model that is copied need not be the same on all processes: it may be made outside of the strategy's scope.
    parts.agree_on(copy.variables)
    for layer in copy._flatten_layers(include_self=False):
        finish(layer)
    names = [[node.operation.name for node in nodes_of(each)] for each in (graph, copy)]
    if names[0] != names[1]:
        raise ValueError(f"The copy of {graph.name!r} has its layers in another order. Please report this.")
    return copy


def remade(layer: Any) -> Any:
    """A layer like the given one, without its weights; itself if it holds what is not in its config, and no weights.

    Raises:
        ValueError: it cannot be made of its config.
    """
    if type(layer) is keras.layers.Lambda:
        # From a config Keras makes them of functions that are in files only.
        config = {name: value for name, value in layer.get_config().items() if name in ("name", "trainable", "dtype")}
        given = {"output_shape": layer._output_shape, "mask": layer.mask, "arguments": layer.arguments}
        return keras.layers.Lambda(layer.function, **given, **config)
    if hasattr(layer, "save_assets") and not layer.weights:
        # Such as a vocabulary that was learnt.
        return layer
    try:
        return type(layer).from_config(layer.get_config())
    # The second for a class that has none of its own, and other arguments than Keras' classes.
    except (NotImplementedError, TypeError) as error:
        raise ValueError(
            f"The layer {layer.name!r} is copied to the device of its stage by its config: implement get_config() of "
            f"{type(layer).__name__}. Received: {layer!r}."
        ) from error


def finish(layer: Any) -> None:
    """Has a layer that was given weights compute what it makes of them beforehand."""
    if isinstance(layer, keras.layers.Normalization):
        layer.finalize_state()


def _remat_of(layer: Any) -> contextlib.AbstractContextManager[Any]:
    """The keras.RematScope in which a layer was made, which is no part of its config."""
    mode = getattr(layer, "_remat_mode", None)
    return contextlib.nullcontext() if mode is None else keras.RematScope(**mode._asdict())
