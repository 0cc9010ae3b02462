"""Stages of a pipeline. A stage is the part of a model's graph that one device computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_ext.pipeline.graph_nodes import Node, nodes_of
from keras_ext.tensor.split_tensor import whole_tensor
from strategies import layer_api
from strategies.schedules import Partition


@dataclass(frozen=True)
class Stage:
    """Some of the nodes of a graph, in an order in which they can be computed.

    Attributes:
        index: the number of the stage.
        nodes: the calls of layers and operations.
        inputs: Keras tensors from outside of the stage: the model's inputs, or results of earlier stages.
        outputs: Keras tensors that later stages use, or that the model returns.
    """

    index: int
    nodes: tuple[Node, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @property
    def layers(self) -> list[keras.Layer]:
        """The layers that the stage calls."""
        found = {id(node.operation): node.operation for node in self.nodes}
        return [operation for operation in found.values() if isinstance(operation, keras.Layer)]

    def compute(self, inputs: Sequence[Any], training: bool | None, added_losses: list[Any] | None = None) -> list[Any]:
        """Returns the outputs of the stage.

        Args:
            inputs: tensors, one for each of the stage's inputs.
            training: the `training` argument of layers; None for the layers' default.
            added_losses: a list to which the losses that layers add are appended, including activity penalties. If left
                out, these stay with the layers until a layer is called outside of a model's call.
        """
        values = dict(zip(map(id, self.inputs), inputs, strict=True))
        for node in self.nodes:
            args, kwargs = node.fill_in(values)
            if isinstance(node.operation, keras.Layer) and training is not None:
                # Overrides the value that the layer got when the graph was created, as a Functional model does.
                kwargs = {**kwargs, "training": training}
            made = keras.tree.flatten(node.operation(*args, **kwargs))
            values.update(zip(map(id, node.outputs), made, strict=True))
            if added_losses is not None and isinstance(node.operation, keras.Layer):
                # Collected now, because the next call of the same layer clears them.
                added_losses += _taken(node.operation)
        # Each output is sent to another stage as one tensor, so split tensors are joined, wherever the cut is.
        outputs = [whole_tensor(values[id(tensor)]) for tensor in self.outputs]
        layer_api.warn_of_mixed_microbatches(outputs, self.index)
        return outputs

    def take_added_losses(self) -> list[Any]:
        """Returns the losses that layers have added since the last call, and clears them."""
        return [loss for layer in self.layers for loss in _taken(layer)]

    @property
    def trainable_variables(self) -> list[Any]:
        """The trainable Keras variables of the stage's layers, each once."""
        # Uses the variables' own flags, as the model's list does: a frozen layer may contain trainable adapters.
        found = {id(each): each for layer in self.layers for each in layer.variables if each.trainable}
        return list(found.values())

    @property
    def sums_over_replicas(self) -> bool:
        """True if a layer runs a collective over replicas while it computes, which a function in a graph cannot."""
        inside = [inner for layer in self.layers for inner in layer._flatten_layers()]
        return any(getattr(inner, "synchronized", False) for inner in inside)

    @property
    def state_variables(self) -> list[Any]:
        """The non-trainable Keras variables of the stage, which may change with each call: statistics, random seeds."""
        trained = {id(variable) for variable in self.trainable_variables}
        found = {id(variable): variable for layer in self.layers for variable in layer.variables}
        return [variable for key, variable in found.items() if key not in trained]

    def state(self) -> list[Any]:
        """Returns the current values of `state_variables`."""
        # A tensor with the value is needed; convert_to_tensor would return the variable itself.
        return [ops.stop_gradient(variable.value) for variable in self.state_variables]


def _taken(layer: keras.Layer) -> list[Any]:
    losses = [loss for inner in layer._flatten_layers() for loss in inner._get_own_losses()]
    layer._clear_losses()
    return losses


def penalties_of(stages: Sequence[Stage]) -> list[Callable[[], list[Any]]]:
    """Returns for each stage a function that computes the penalties of its regularized weights.

    A weight of several stages counts in the first of them.
    """
    seen: set[int] = set()
    found: list[Callable[[], list[Any]]] = []
    for stage in stages:
        own = [v for v in stage.trainable_variables if v.regularizer is not None and id(v) not in seen]
        seen.update(map(id, own))
        found.append(functools.partial(_penalties, own))
    return found


def _penalties(variables: Sequence[Any]) -> list[Any]:
    return [variable.regularizer(variable) for variable in variables]


def cut(graph: Any, partition: Partition) -> list[Stage]:
    """Cuts a Functional model's graph into stages of consecutive nodes.

    A tensor is an output of the stage that computes it and an input of each later stage that uses it.
    """
    nodes = nodes_of(graph)
    bounds = [*partition.starts, len(nodes)]
    made_in = {id(tensor): -1 for tensor in graph.inputs}
    used_in: dict[int, int] = {id(tensor): len(partition.starts) for tensor in graph.outputs}
    members = [nodes[bounds[k] : bounds[k + 1]] for k in range(len(partition.starts))]
    for k, own in enumerate(members):
        for node in own:
            made_in.update((id(tensor), k) for tensor in node.outputs)
            for tensor in node.input_tensors:
                used_in[id(tensor)] = max(used_in.get(id(tensor), -1), k)
    stages = []
    for k, own in enumerate(members):
        taken = {id(t): t for node in own for t in node.input_tensors if made_in[id(t)] != k}
        given = {id(t): t for node in own for t in node.outputs if used_in.get(id(t), -1) > k}
        stages.append(Stage(k, tuple(own), tuple(taken.values()), tuple(given.values())))
    return stages


def stages_of_operations(graph: Any, partition: Partition) -> Mapping[int, list[int]]:
    """Returns the stages in which each layer or operation of a graph is called, by its ``id``."""
    found: dict[int, list[int]] = {}
    for stage in cut(graph, partition):
        for node in stage.nodes:
            stages = found.setdefault(id(node.operation), [])
            if stage.index not in stages:
                stages.append(stage.index)
    return found
