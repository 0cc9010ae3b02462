"""Partitions a model's graph into stages, as the user specifies them or by the cost of its layers."""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Callable, Sequence
from typing import Any

import keras
import numpy as np

from keras_ext.pipeline.graph_nodes import Node, nodes_of
from keras_ext.pipeline.layer_costs import costs_of
from keras_ext.pipeline.stage_layer import PipelineStage
from strategies import layer_api
from strategies.schedules.partition import Cost, Partition, at, balanced, uniform

#: The number of tensors of a weight's size that a stage holds: the weight, its gradient, and two optimizer slots, as of
#: Adam.
NUM_HELD_OF_WEIGHTS = 4


@dataclasses.dataclass(frozen=True)
class PartitionByTime:
    """A partition whose slowest stage is as fast as possible, by timing the forward and backward pass of each layer.

    Layers are timed on the devices that hold the model when the pipeline is created: create it on devices like those
    that it will run on. For each layer, one traced function is timed, as in training; identical layers are timed once.
    A layer that cannot be traced is timed with its ops run one by one.

    Attributes:
        sample_input: a micro-batch as the model takes it, arrays or tensors. If left out, zeros or empty strings are
            used; for a lookup that refuses unknown words, words of its vocabulary.
        num_rows: the number of rows of a micro-batch, used if `sample_input` is left out. Other unknown sizes are 16,
            or 4 or 1 if a layer refuses more.
        max_stage_bytes: the limit for a stage's weights, their gradients, two optimizer slots for each, and the
            activations of the micro-batches that the schedule makes it hold. One limit for all stages, or one per
            stage.

    Example:

        layers = [keras.Input((4,)), keras.layers.Dense(8), keras.layers.Dense(8), keras.layers.Dense(3)]
        model = keras_ext.PipelineModel(layers, num_stages=2, partition=keras_ext.PartitionByTime(num_rows=8))
    """

    sample_input: Any = None
    num_rows: int = 32
    max_stage_bytes: float | Sequence[float] | None = None


#: The values of the argument `partition` of `PipelineModel`.
Wanted = str | Sequence[str] | PartitionByTime


def num_stages_of(graph: Any) -> int | None:
    """Returns the number of stages that the `PipelineStage` layers of a graph define; None without such layers."""
    stages = [node.operation.stage for node in nodes_of(graph) if isinstance(node.operation, PipelineStage)]
    return max(stages) + 1 if stages else None


def check_positions(graph: Any, positions: Sequence[int]) -> None:
    """Refuses `PipelineStage` layers that are on other devices than the schedule has for their stages.

    Args:
        graph: a Functional model.
        positions: the position of each stage on the axis "pipe".

    Raises:
        ValueError: a layer is at another position.
    """
    for node in nodes_of(graph):
        layer = node.operation
        if isinstance(layer, PipelineStage) and layer.position != positions[layer.stage]:
            raise ValueError(
                f"With this schedule, stage {layer.stage} is at position {positions[layer.stage]} of the axis 'pipe': "
                f"PipelineStage(layers, {layer.stage}, position={positions[layer.stage]}). Received: the layer "
                f"{layer.name!r} with position={layer.position}."
            )


def partition_of(graph: Any, num_stages: int, wanted: Wanted, num_held: Callable[[int], int]) -> Partition:
    """Partitions a graph into stages.

    Args:
        graph: a Functional model.
        num_stages: number of stages.
        wanted: the argument `partition` of `PipelineModel`.
        num_held: returns for a stage the number of micro-batches whose activations it holds.

    Raises:
        ValueError: the partition is not possible.
    """
    nodes = nodes_of(graph)
    links, seen = [], set[int]()
    for node in nodes:
        layer = node.operation
        is_first = id(layer) not in seen
        seen.add(id(layer))
        links.append(Cost(node.name, parameters=layer.count_params() if is_first and hasattr(layer, "weights") else 0))
    if num_stages_of(graph) is not None:
        return _by_stage_layers(nodes, links, num_stages)
    if wanted == "time":
        wanted = PartitionByTime()
    if isinstance(wanted, PartitionByTime):
        return _by_time(graph, links, num_stages, wanted, num_held)
    if wanted == "uniform":
        return uniform(links, num_stages)
    if wanted == "parameters":
        return balanced(links, [float(link.parameters) for link in links], num_stages)
    if isinstance(wanted, str):
        raise ValueError(
            "partition is 'time', 'parameters', 'uniform', a keras_ext.PartitionByTime or the names of the layers at "
            f"which stages begin. Received: partition={wanted!r}."
        )
    if len(wanted) != num_stages - 1:
        raise ValueError(f"{num_stages} stages begin at {num_stages - 1} names. Received: partition={list(wanted)}.")
    return at(links, wanted)


def _by_stage_layers(nodes: Sequence[Node], links: Sequence[Cost], num_stages: int) -> Partition:
    """Cuts before the first `PipelineStage` of each stage; other layers belong to the stage before them."""
    starts, stages = [0], []
    for index, node in enumerate(nodes):
        if isinstance(node.operation, PipelineStage):
            stages.append(node.operation.stage)
            if stages[-1] == len(starts):
                starts.append(index)
    if len(starts) != num_stages or stages[0] != 0 or any(b - a not in (0, 1) for a, b in itertools.pairwise(stages)):
        raise ValueError(
            f"Stages are numbered 0 to {num_stages - 1} in the order in which they are computed. Received: stages "
            f"{stages}."
        )
    return Partition(tuple(links), tuple(starts))


def _by_time(
    graph: Any, links: Sequence[Cost], num_stages: int, wanted: PartitionByTime, num_held: Callable[[int], int]
) -> Partition:
    costs = costs_of(graph, wanted.sample_input, wanted.num_rows)
    # Each process measures different times. With different cuts, processes would wait for each other forever.
    [agreed] = layer_api.replica_parts().from_rank_0([np.array(costs, "float64").reshape(-1, 2)])
    timed = [
        dataclasses.replace(link, seconds=float(seconds), activation_bytes=int(held))
        for link, (seconds, held) in zip(links, agreed, strict=True)
    ]
    bytes_each = {"float64": 8, "float32": 4}.get(keras.config.floatx(), 2)
    memory = [
        [
            float(NUM_HELD_OF_WEIGHTS * bytes_each * link.parameters + num_held(k) * link.activation_bytes)
            for link in timed
        ]
        for k in range(num_stages)
    ]
    weights = [link.seconds for link in timed]
    return balanced(timed, weights, num_stages, memory=memory, max_memory=wanted.max_stage_bytes)
