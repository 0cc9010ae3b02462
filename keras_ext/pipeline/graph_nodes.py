"""The calls of layers and operations in a Functional model's graph, with those inside nested models in their place."""

from __future__ import annotations

import collections
import dataclasses
import functools
from collections.abc import Iterator, Mapping
from typing import Any

import keras

from keras_ext.tensor.custom_layers import is_graph
from keras_ext.tensor_metadata import MASK, metadata_of


@dataclasses.dataclass(frozen=True, eq=False)
class Node:
    """One call of a layer or operation.

    Attributes:
        operation: the layer or operation.
        name: its name; for a layer in a nested model whose name is not unique, its path, such as ``"encoder/dense"``.
        args: the positional arguments, with Keras' tensors.
        kwargs: the keyword arguments, likewise.
        outputs: Keras' tensors that the call returns.
    """

    operation: Any
    name: str
    args: tuple[Any, ...]
    kwargs: Mapping[str, Any]
    outputs: tuple[Any, ...]

    @functools.cached_property
    def input_tensors(self) -> list[Any]:
        """Keras' tensors among the arguments."""
        return [each for each in keras.tree.flatten((self.args, dict(self.kwargs))) if _is_symbolic(each)]

    def fill_in(self, values: Mapping[int, Any]) -> tuple[tuple[Any, ...], dict[str, Any]]:
        """Returns the arguments with values in place of Keras' tensors; None for a tensor without a value.

        Args:
            values: values by the ``id`` of Keras' tensors.
        """

        def filled(value: Any) -> Any:
            return values.get(id(value)) if _is_symbolic(value) else value

        args, kwargs = keras.tree.map_structure(filled, (self.args, dict(self.kwargs)))
        return args, kwargs


def nodes_of(graph: Any) -> list[Node]:
    """Returns the calls of a Functional model's layers and operations, in an order in which they can be computed.

    The order is that of Keras. A nested Sequential or Functional model that is called once, such as the backbone of a
    classifier, is replaced by its own nodes, at any depth; the tensors that it takes and returns are those of the outer
    graph. A model that does more than compute its graph, or whose call depends on more, stays one node.
    """
    found = list(_expanded(graph, ""))
    names: dict[str, set[int]] = collections.defaultdict(set)
    for _, node in found:
        names[node.operation.name].add(id(node.operation))
    is_unique = {name for name, own in names.items() if len(own) == 1}
    return [node if node.operation.name in is_unique else dataclasses.replace(node, name=path) for path, node in found]


def _expanded(graph: Any, prefix: str) -> Iterator[tuple[str, Node]]:
    """Yields each node with its operation's path."""
    nodes = _own_nodes(graph)
    calls = collections.Counter(id(node.operation) for node in nodes)
    for node in nodes:
        path = prefix + node.operation.name
        inner = _graph_inside(node) if calls[id(node.operation)] == 1 else None
        if inner is None:
            yield path, node
            continue
        # The outer graph's tensors identify the values, so that the model's own outputs stay what they are.
        taken = zip(map(id, inner.inputs), keras.tree.flatten(node.args[0]), strict=True)
        made = zip(map(id, inner.outputs), node.outputs, strict=True)
        outer: dict[int, Any] = {**dict(taken), **dict(made)}
        for inner_path, each in _expanded(inner, f"{path}/"):
            yield inner_path, _renamed(each, outer, node.kwargs)


def _own_nodes(graph: Any) -> list[Node]:
    depths = sorted(graph._nodes_by_depth, reverse=True)
    return [
        Node(node.operation, node.operation.name, node.arguments.args, node.arguments.kwargs, tuple(node.outputs))
        for depth in depths
        for node in graph._nodes_by_depth[depth]
        if not node.is_input
    ]


def _renamed(node: Node, outer: Mapping[int, Any], call_kwargs: Mapping[str, Any]) -> Node:
    """Returns a node of a nested model with the outer graph's tensors, and the `training` argument of the model."""

    def renamed(value: Any) -> Any:
        return outer.get(id(value), value)

    args, kwargs = keras.tree.map_structure(renamed, (node.args, dict(node.kwargs)))
    if call_kwargs.get("training") is not None and getattr(node.operation, "_call_has_training_arg", False):
        kwargs = {**kwargs, "training": call_kwargs["training"]}
    return Node(node.operation, node.name, args, kwargs, tuple(map(renamed, node.outputs)))


def _graph_inside(node: Node) -> Any:
    """Returns the Functional graph that a node computes; None if it does anything else, or more."""
    model = node.operation
    if not is_graph(model) or "call" in vars(model) or not _has_keras_call(type(model)):
        return None
    graph = getattr(model, "_functional", model)
    # A model that recomputes itself, or penalizes what it returns, does so as a whole.
    if graph is None or getattr(model, "_remat_mode", None) or getattr(model, "activity_regularizer", None) is not None:
        return None
    if _uses_weights(model, graph):
        return None
    others = keras.tree.flatten([value for name, value in node.kwargs.items() if name != "training"])
    if len(node.args) != 1 or any(value is not None for value in others):
        return None
    given, wanted = keras.tree.flatten(node.args[0]), graph.inputs
    alike = len(given) == len(wanted) and all(map(_is_taken_as_it_is, given, wanted))
    # A mask of an input would be that of the outputs, too.
    if not alike or any(mask is not None for mask in metadata_of(given, MASK)):
        return None
    # A model of several inputs that gets a dict takes them by name.
    if isinstance(node.args[0], dict) and {*node.args[0]} != {*_names(graph._inputs_struct)}:
        return None
    results = [*map(id, graph.inputs), *map(id, graph.outputs)]
    return graph if len(set(results)) == len(results) else None


def _uses_weights(model: Any, graph: Any) -> bool:
    """Returns True if a model holds weights itself, or computes with weights between its layers: no stage has these."""
    if model._trainable_variables or model._non_trainable_variables:
        return True
    arguments = keras.tree.flatten([[node.args, dict(node.kwargs)] for node in _own_nodes(graph)])
    return any(isinstance(each, keras.Variable) for each in arguments)


def _has_keras_call(cls: type) -> bool:
    owner = next(each for each in cls.__mro__ if "call" in vars(each))
    return owner.__module__.startswith("keras.")


def _is_taken_as_it_is(given: Any, wanted: Any) -> bool:
    """Returns True if a nested model neither converts nor reshapes a tensor for its input."""
    if not _is_symbolic(given) or given.dtype != wanted.dtype or len(given.shape) != len(wanted.shape):
        return False
    return not (wanted.sparse or wanted.ragged)


def _names(inputs: Any) -> list[str]:
    return list(inputs) if isinstance(inputs, dict) else []


def _is_symbolic(value: Any) -> bool:
    return isinstance(value, keras.KerasTensor)
