"""A stage: the part of a model's graph that one device computes."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import keras
from keras import ops

from keras_ext.pipeline.partition import Partition
from keras_ext.tensor.split_tensor import whole_tensor


@dataclass(frozen=True)
class Stage:
    """Some of the nodes of a graph, in an order in which they can be computed.

    Attributes:
        index: of the stage.
        nodes: Keras' nodes, calls of a layer or an operation each.
        inputs: Keras tensors that come from outside: the model's inputs, or what earlier stages made.
        outputs: Keras tensors that later stages take, or that the model returns.
    """

    index: int
    nodes: tuple[Any, ...]
    inputs: tuple[Any, ...]
    outputs: tuple[Any, ...]

    @property
    def layers(self) -> list[keras.Layer]:
        """The layers that are called here."""
        found = {id(node.operation): node.operation for node in self.nodes}
        return [operation for operation in found.values() if isinstance(operation, keras.Layer)]

    def compute(self, inputs: Sequence[Any], training: bool | None, added_losses: list[Any] | None = None) -> list[Any]:
        """Returns what the stage makes of `inputs`.

        Args:
            inputs: tensors.
            training: whether; as layers see fit if None.
            added_losses: takes what layers add to the loss, penalties of activities included. Left out, these stay with
                the layers, until one is called outside of a model's call.
        """
        values = dict(zip(map(id, self.inputs), inputs, strict=True))
        for node in self.nodes:
            args, kwargs = node.arguments.fill_in(values)
            if isinstance(node.operation, keras.Layer) and training is not None:
                # As a Functional model does it, whatever the layer was told when the graph was made.
                kwargs = {**kwargs, "training": training}
            made = keras.tree.flatten(node.operation(*args, **kwargs))
            values.update(zip(map(id, node.outputs), made, strict=True))
            if added_losses is not None and isinstance(node.operation, keras.Layer):
                # Now: the next call of the same layer begins with none.
                added_losses += _taken(node.operation)
        # Each output goes to another stage as one tensor: pieces are joined, wherever the cut is.
        return [whole_tensor(values[id(tensor)]) for tensor in self.outputs]

    def take_added_losses(self) -> list[Any]:
        """Returns what layers have added to the loss since they were asked last."""
        return [loss for layer in self.layers for loss in _taken(layer)]

    @property
    def trainable_variables(self) -> list[Any]:
        """Keras' variables of the layers here that are trained, each once."""
        # By the weights' own flags, as in the model's list: a frozen layer may hold adapters that are trained.
        found = {id(each): each for layer in self.layers for each in layer.variables if each.trainable}
        return list(found.values())

    @property
    def sums_over_replicas(self) -> bool:
        """True if a layer here all-reduces over replicas while it computes, which functions of a graph cannot."""
        inside = [inner for layer in self.layers for inner in layer._flatten_layers()]
        return any(getattr(inner, "synchronized", False) for inner in inside)

    @property
    def state_variables(self) -> list[Any]:
        """Keras' variables here that are not trained, but may change with each call: statistics, seeds of draws."""
        trained = {id(variable) for variable in self.trainable_variables}
        found = {id(variable): variable for layer in self.layers for variable in layer.variables}
        return [variable for key, variable in found.items() if key not in trained]

    def state(self) -> list[Any]:
        """Returns what is in these now."""
        # A value, not the variable itself, which convert_to_tensor leaves as it is.
        return [ops.stop_gradient(variable.value) for variable in self.state_variables]


def _taken(layer: keras.Layer) -> list[Any]:
    losses = [loss for inner in layer._flatten_layers() for loss in inner._get_own_losses()]
    layer._clear_losses()
    return losses


def penalties_of(stages: Sequence[Stage]) -> list[Callable[[], list[Any]]]:
    """For each stage what computes the penalties of its weights that have a regularizer, and are in no stage before."""
    seen: set[int] = set()
    found: list[Callable[[], list[Any]]] = []
    for stage in stages:
        own = [v for v in stage.trainable_variables if v.regularizer is not None and id(v) not in seen]
        seen.update(map(id, own))
        found.append(functools.partial(_penalties, own))
    return found


def _penalties(variables: Sequence[Any]) -> list[Any]:
    return [variable.regularizer(variable) for variable in variables]


def nodes_of(graph: Any) -> list[Any]:
    """The calls of a Functional model's layers and operations, in the order in which Keras computes them."""
    depths = sorted(graph._nodes_by_depth, reverse=True)
    return [node for depth in depths for node in graph._nodes_by_depth[depth] if not node.is_input]


def cut(graph: Any, partition: Partition) -> list[Stage]:
    """Cuts a Functional model's graph into stages of consecutive nodes.

    A tensor crosses every cut between where it is made and where it is used.
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


def stages_of_operations(graph: Any, partition: Partition) -> Mapping[str, list[int]]:
    """The stages in which each layer or operation of a graph is called, by its name."""
    found: dict[str, list[int]] = {}
    for stage in cut(graph, partition):
        for node in stage.nodes:
            stages = found.setdefault(node.operation.name, [])
            if stage.index not in stages:
                stages.append(stage.index)
    return found
