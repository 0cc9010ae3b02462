"""Finds ops of a graph that compute what an earlier one computes, so that copies of the graph need them once.

Keras' optimizers compute for each weight anew what is the same for all: rates, powers of decays, constants. These are a
quarter of the ops of a step. TensorFlow merges them when it optimizes the graph (``common_subgraph_elimination`` of
Grappler); by then, they would have been created for each replica.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from strategies._tf_internals import op_definitions

#: Attributes of an op that do not change what it computes.
_UNIMPORTANT = ("_class",)


def find_common(nodes: Iterable[Any]) -> Mapping[str, str]:
    """Returns, by the name of an op, the name of the first one that computes the same.

    Ops compute the same if their types, attributes, devices, inputs and control inputs are the same. Stateful ops, and
    those that call functions, are left alone.

    Args:
        nodes: the definitions of the ops, each after those that it takes its inputs from.

    Example:
        >>> import tensorflow as tf
        >>> with tf.Graph().as_default() as graph:
        ...     a, b = tf.constant(2.0, name="a"), tf.constant(2.0, name="b")
        ...     c, d = tf.sqrt(a, name="c"), tf.sqrt(b, name="d")
        >>> dict(find_common(graph.as_graph_def().node))
        {'b': 'a', 'd': 'c'}
    """
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for node in nodes:
        definition = op_definitions.get(node.op)
        if definition is None or definition.is_stateful or node.op in ("Placeholder", "PlaceholderWithDefault"):
            continue
        values = []
        for name, value in node.attr.items():
            if value.HasField("func") or (value.HasField("list") and value.list.func):
                break
            if name not in _UNIMPORTANT:
                values.append((name, value.SerializeToString(deterministic=True)))
        else:
            inputs = tuple(renamed(each, same) for each in node.input)
            key = node.op, node.device, inputs, tuple(sorted(values))
            found = first.setdefault(key, node.name)
            if found != node.name:
                same[node.name] = found
    return same


def renamed(name: str, same: Mapping[str, str]) -> str:
    """Returns an input of an op, with the op that it comes from replaced by the first one that is the same."""
    mark = "^" if name.startswith("^") else ""
    op, colon, index = name.removeprefix("^").partition(":")
    return f"{mark}{same.get(op, op)}{colon}{index}"
