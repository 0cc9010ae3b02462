"""Nodes of a graph, prepared once to be imported for each replica."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies.steps.function_copies import functions_of


@dataclass(frozen=True)
class NodesToCopy:
    """Nodes of a graph, without edges from other ops but for tensors.

    Attributes:
        graph_def: the nodes, a `tf.compat.v1.GraphDef`.
        outside_tensors: the tensors of other ops that they take, as "name:index".
        outside_ops: by the name of a node, the other ops that it waits for: importers take no such edges.
        calling: the positions of the nodes that call functions.
    """

    graph_def: Any
    outside_tensors: Sequence[str]
    outside_ops: Mapping[str, Sequence[str]]
    calling: Sequence[int]


def nodes_to_copy(nodes: Mapping[str, Any], versions: Any) -> NodesToCopy:
    """Returns copies of nodes, by their names; `versions` are those of their graph's definition."""
    graph_def = tf.compat.v1.GraphDef(versions=versions)
    tensors: dict[str, None] = {}
    ops: dict[str, list[str]] = {}
    for node in nodes.values():
        copied = graph_def.node.add()
        copied.CopyFrom(node)
        _drop_colocations(copied, nodes)
        for each in node.input:
            name, _, index = each.partition(":")
            if each.startswith("^"):
                if each[1:] not in nodes:
                    copied.input.remove(each)
                    ops.setdefault(node.name, []).append(each[1:])
            elif name not in nodes:
                tensors[f"{name}:{index or 0}"] = None
    calling = [index for index, node in enumerate(graph_def.node) if functions_of(node)]
    return NodesToCopy(graph_def, list(tensors), ops, calling)


def _drop_colocations(node: Any, nodes: Mapping[str, Any]) -> None:
    """Removes colocations with ops that are not copied: all ops have devices."""
    if "_class" in node.attr:
        beside = [each for each in node.attr["_class"].list.s if each.decode().removeprefix("loc:@") in nodes]
        if beside:
            node.attr["_class"].list.s[:] = beside
        else:
            del node.attr["_class"]
