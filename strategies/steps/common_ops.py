"""Merges ops of a graph that compute the same, so that copies of the graph have them once.

Keras' optimizers compute for each weight anew what is the same for all: rates, powers of decays, constants. These are
two fifths of the ops of a step. When TensorFlow optimizes the graph (``common_subgraph_elimination`` of Grappler), they
would have been created for each replica; and it does not merge those that read a variable, such as the number of
steps, since it does not know what is written between the reads.
"""

from __future__ import annotations

import collections
from collections.abc import Iterable, Mapping
from typing import Any

import tensorflow as tf

from strategies._tf_internals import op_definitions

#: Attributes of an op that do not change what it computes.
_UNIMPORTANT = ("_class",)
#: Ops whose values come from outside of the graph.
_INPUTS = ("Placeholder", "PlaceholderWithDefault")
_READ = "ReadVariableOp"


def versions_read(ops: Iterable[Any]) -> dict[str, tuple[int, int]]:
    """Returns the version of its variable that each read gets, by the name of the read.

    Reads of one variable that get the same version get the same value. Each op that takes a variable and does more than
    read it may write it, and begins a new version. An op that may write what it does not take, such as a call of
    Python, begins a new version of every variable.

    Args:
        ops: operations in the order of their creation, in which TensorFlow runs those that take the same variable.
    """
    versions: dict[str, tuple[int, int]] = {}
    num_writes: collections.Counter[str] = collections.Counter()
    num_unknown = 0
    for op in ops:
        variables = [each for each in op.inputs if each.dtype == tf.resource]
        if op.type == _READ:
            versions[op.name] = (num_unknown, num_writes[variables[0].name])
        elif any(each.dtype == tf.variant for each in op.inputs) or any(
            each.op.type != "Placeholder" for each in variables
        ):
            # A dataset that is read may write variables that its function has captured; and resources that ops return
            # may be those of any variable.
            num_unknown += 1
        elif variables:
            num_writes.update(each.name for each in variables)
        elif (definition := op_definitions.get(op.type)) is None or definition.is_stateful:
            num_unknown += 1
    return versions


def merge_common(nodes: dict[str, Any], versions: Mapping[str, tuple[int, int]] | None = None) -> dict[str, str]:
    """Removes ops that compute what an earlier one computes; those that took their outputs take the earlier one's.

    Ops compute the same if their types, attributes, devices, inputs and control inputs are the same, and reads of
    variables if they also get the same version. Other stateful ops, and those that call functions, are left alone.

    Args:
        nodes: the definitions of the ops by their names, in the order of their creation; changed in place.
        versions: what :func:`versions_read` returns. Without it, reads are left alone.

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
        key = _computed(node, same, versions or {})
        found = name if key is None else first.setdefault(key, name)
        if found != name:
            same[name] = found
            del nodes[name]
    for node in nodes.values():
        node.input[:] = [_renamed(each, same) for each in node.input]
    return same


def _computed(node: Any, same: Mapping[str, str], versions: Mapping[str, tuple[int, int]]) -> Any:
    """Returns a key of what an op computes; None if it may do something else each time."""
    definition, version = op_definitions.get(node.op), versions.get(node.name)
    if definition is None or (definition.is_stateful and version is None) or node.op in _INPUTS:
        return None
    if any(value.HasField("func") or value.list.func for value in node.attr.values()):
        return None
    values = (
        (name, value.SerializeToString(deterministic=True))
        for name, value in node.attr.items()
        if name not in _UNIMPORTANT
    )
    return node.op, version, node.device, tuple(_renamed(each, same) for each in node.input), tuple(sorted(values))


def _renamed(name: str, same: Mapping[str, str]) -> str:
    """Returns an input of an op, with the op that it comes from replaced by the first one that is the same."""
    mark = "^" if name.startswith("^") else ""
    op, colon, index = name.removeprefix("^").partition(":")
    return f"{mark}{same.get(op, op)}{colon}{index}"
