"""Merges ops of a graph that compute the same, so that copies of the graph have them once.

Keras' optimizers compute for each weight anew what is the same for all: rates, powers of decays, constants. These are a
quarter of the ops of a step. TensorFlow merges them when it optimizes the graph (``common_subgraph_elimination`` of
Grappler); by then, they would have been created for each replica.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

from strategies._tf_internals import op_definitions

#: Attributes of an op that do not change what it computes.
_UNIMPORTANT = ("_class",)
#: Ops whose values come from outside of the graph.
_INPUTS = ("Placeholder", "PlaceholderWithDefault")


def merge_common(nodes: dict[str, Any], may_merge: Callable[[str, str], bool] = lambda *_: True) -> dict[str, str]:
    """Removes ops that compute what an earlier one computes; those that took their outputs take the earlier one's.

    Ops compute the same if their types, attributes, devices, inputs and control inputs are the same. Stateful ops, and
    those that call functions, are left alone.

    Args:
        nodes: the definitions of the ops by their names, in the order of their creation; changed in place.
        may_merge: takes the names of an op and of an earlier one; returns False if both are needed.

    Returns:
        By the name of each removed op, the name of the op that replaces it.

    Example:
        >>> import tensorflow as tf
        >>> with tf.Graph().as_default() as graph:
        ...     a, b = tf.constant(2.0, name="a"), tf.constant(2.0, name="b")
        ...     c, d = tf.sqrt(a, name="c"), tf.sqrt(b, name="d")
        >>> nodes = {node.name: node for node in graph.as_graph_def().node}
        >>> merge_common(nodes)
        {'b': 'a', 'd': 'c'}
        >>> list(nodes)
        ['a', 'c']
    """
    first: dict[Any, str] = {}
    same: dict[str, str] = {}
    for name, node in list(nodes.items()):
        key = _computed(node, same)
        found = name if key is None else first.setdefault(key, name)
        if found != name and may_merge(name, found):
            same[name] = found
            del nodes[name]
    for node in nodes.values():
        node.input[:] = [_renamed(each, same) for each in node.input]
    return same


def _computed(node: Any, same: Mapping[str, str]) -> Any:
    """Returns a key of what an op computes; None if it may do something else each time."""
    definition = op_definitions.get(node.op)
    if definition is None or definition.is_stateful or node.op in _INPUTS:
        return None
    if any(value.HasField("func") or value.list.func for value in node.attr.values()):
        return None
    values = (
        (name, value.SerializeToString(deterministic=True))
        for name, value in node.attr.items()
        if name not in _UNIMPORTANT
    )
    return node.op, node.device, tuple(_renamed(each, same) for each in node.input), tuple(sorted(values))


def _renamed(name: str, same: Mapping[str, str]) -> str:
    """Returns an input of an op, with the op that it comes from replaced by the first one that is the same."""
    mark = "^" if name.startswith("^") else ""
    op, colon, index = name.removeprefix("^").partition(":")
    return f"{mark}{same.get(op, op)}{colon}{index}"
