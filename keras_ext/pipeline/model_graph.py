"""Creates the graph of a pipeline, and its copy on the devices of stages."""

from __future__ import annotations

import contextlib
from collections.abc import Collection, Mapping, Sequence
from typing import Any

import keras

from keras_ext.cloning import Copies, copy_state, counted_layers, input_of, is_by_attributes, put_in_order
from keras_ext.pipeline.graph_nodes import nodes_of
from strategies import layer_api

#: Methods that a user's class may override, and that a pipeline does not call.
OWN_WAYS = ("train_step", "test_step", "predict_step", "compute_loss", "compute_metrics", "call")


def graph_of(given: Any) -> Any:
    """Returns a Functional model, not compiled, of the layers of a Sequential or Functional model or of a list.

    Raises:
        ValueError: there is no graph, a class overrides one of `OWN_WAYS`, a weight is in no layer, or the graph cannot
            be computed in micro-batches.
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
    usual = keras.Sequential if isinstance(given, keras.Sequential) else graph.__class__
    own = [name for name in OWN_WAYS if getattr(given.__class__, name) is not getattr(usual, name)]
    if own:
        raise ValueError(
            "A pipeline trains in its own way, and would not use a model's own one. Put a loss of your own into "
            f"compile, or into a layer's add_loss. Received: {type(given).__name__}, which has {', '.join(own)}."
        )
    held = {id(weight) for weight in graph.weights}
    beside = [weight.path for weight in given.weights if id(weight) not in held]
    is_kept = isinstance(given, keras.Model) and not isinstance(given, keras.Sequential)
    if beside and (not is_kept or given._trainable_variables):
        raise ValueError(
            "A pipeline is made of a model's layers, and would lose weights that the model itself holds. Put them into "
            f"a layer. Received: {given.name!r} with the weights {beside}."
        )
    put_in_order(graph, counted_layers(given))
    _check(graph)
    return graph


def _check(graph: Any) -> None:
    for tensor in graph.inputs:
        if getattr(tensor, "sparse", False) or getattr(tensor, "ragged", False):
            raise ValueError(
                "A pipeline cuts inputs into micro-batches, which sparse and ragged ones do not allow. Give it dense "
                "ones, as by dataset.map(lambda x, y: (tf.sparse.to_dense(x), y)) or x.to_tensor(). "
                f"Received: {tensor!r}."
            )
    weights = {id(weight) for weight in graph.weights}
    for node in nodes_of(graph):
        arguments = keras.tree.flatten((node.args, dict(node.kwargs)))
        used = [each.path for each in arguments if id(each) in weights]
        if used:
            raise ValueError(
                "A stage of a pipeline has the weights of its layers, and what is between layers has none. Use them in "
                f"a layer. Received: {node.operation.name!r} with {used}."
            )
    for layer in graph._flatten_layers(include_self=False):
        if getattr(layer, "stateful", False) is True:
            raise ValueError(
                "A layer with stateful=True keeps something for each row of a batch, and here sees micro-batches, one "
                f"after the other. Received: {layer.name!r}."
            )


def _with_input(layers: Sequence[Any]) -> list[Any]:
    """Returns the layers; if the first one is a model with an input, that input is put before it."""
    first = layers[0] if layers else None
    return [*([] if isinstance(first, keras.layers.InputLayer) else input_of(first)), *layers]


class StageCopies:
    """Copies a model's layers, each with its variables at the positions of its stages on the axis "pipe".

    Args:
        graph: a Functional model.
        parts: the parts of the replica.
        positions_of: the positions of each layer or operation of the graph's nodes, by its ``id``.

    Raises:
        ValueError: two layers at different positions contain the same layer.
    """

    def __init__(self, graph: Any, parts: layer_api.ReplicaParts, positions_of: Mapping[int, Collection[int]]) -> None:
        self._graph, self._parts = graph, parts
        self._positions_of = _positions_of_all(graph, positions_of)
        self._copies = Copies(scope=self._scope)

    def copied(self) -> Any:
        """Returns a Functional model of the copies, with the same order of weights, without the values.

        Raises:
            ValueError: a layer cannot be copied.
        """
        with layer_api.values_follow():
            return self._copies.plain_graph(self._graph)

    def take_attributes(self, model: Any, new: Any) -> None:
        """Copies the attributes of a model of a user's class, such as a backbone and a preprocessor.

        Args:
            model: the model whose graph was given.
            new: the model that has the graph of copies.
        """
        self._copies.take_attributes(model, new)

    def take_state(self, model: Any, new: Any) -> None:
        """Copies the weights and other learnt state.

        Args:
            model: the model whose graph was given.
            new: the model that has the graph of copies.

        Raises:
            ValueError: the copy has its layers in another order, or has more weights.
        """
        if len(model.weights) != len(new.weights):
            raise ValueError(
                "Layers of the model hold the same layer, and their copies would not: implement get_config() and "
                f"from_config() of layers that cannot be copied attribute by attribute. Received: {model.name!r} with "
                f"{len(model.weights)} weights, whose copy has {len(new.weights)}."
            )
        copy_state(model, new)
        wanted = [id(self._copies.get(node.operation)) for node in nodes_of(self._graph)]
        if wanted != [id(node.operation) for node in nodes_of(new)]:
            raise ValueError(f"The copy of {self._graph.name!r} has its layers in another order. Please report this.")

    def _scope(self, layer: Any) -> contextlib.AbstractContextManager[Any]:
        stack = contextlib.ExitStack()
        # A nested model whose layers are in several stages has no position of its own.
        if id(layer) in self._positions_of:
            stack.enter_context(self._parts.at(pipe=self._positions_of[id(layer)]))
        stack.enter_context(_remat_of(layer))
        return stack


def _positions_of_all(graph: Any, positions_of: Mapping[int, Collection[int]]) -> Mapping[int, Collection[int]]:
    """Returns the positions of a graph's layers, and of the layers inside of them, by their id.

    A layer that layers at several positions hold, such as a table of tokens, is at all of these.

    Raises:
        ValueError: layers at different positions hold the same layer, and the copy of one of them would not.
    """
    # The layers of the graph that hold each layer, by its id; a layer holds itself.
    holders: dict[int, tuple[Any, list[Any]]] = {}
    for layer in {id(node.operation): node.operation for node in nodes_of(graph)}.values():
        for inner in layer._flatten_layers() if isinstance(layer, keras.Layer) else [layer]:
            holders.setdefault(id(inner), (inner, []))[1].append(layer)
    found: dict[int, Collection[int]] = {}
    for key, (inner, own) in holders.items():
        each_at = [sorted(positions_of[id(layer)]) for layer in own]
        found[key] = {position for positions in each_at for position in positions}
        is_apart = any(set(positions) != found[key] for positions in each_at) and inner.weights
        # A copy that is made from its config makes the layers that it holds.
        if is_apart and not all(layer is inner or is_by_attributes(layer) for layer in own):
            raise ValueError(
                f"The layers {own[0].name!r} and {own[1].name!r} hold the same layer {inner.name!r}, and are in stages "
                f"{each_at[0]} and {each_at[1]}. Put both into one stage by `partition`. A layer that is called in two "
                f"stages itself is fine. Received: {inner!r}."
            )
    return found


def _remat_of(layer: Any) -> contextlib.AbstractContextManager[Any]:
    """Returns the keras.RematScope in which a layer was created, which its config does not contain."""
    mode = getattr(layer, "_remat_mode", None)
    return contextlib.nullcontext() if mode is None else keras.RematScope(**mode._asdict())
