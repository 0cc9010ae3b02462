"""Computes results that depend only on the inputs of a computation: masks, for example, usually need no weights.

Its contract is tested in ``tests/strategies/processes/spanning_pipe.py``.
"""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.deferred import SHAPES_ONLY


def compute_from_inputs(function: Callable[..., Sequence[Any]], inputs: Sequence[Any]) -> list[Any] | None:
    """Returns ``function(*inputs)`` if it depends only on the inputs; None if it depends on variables, too.

    Args:
        function: takes and returns tensors or None; it is traced where variables need no value.
        inputs: tensors of the graph that is being traced, or None.
    """
    graph = tf.__internal__.FuncGraph(f"{SHAPES_ONLY}_{uuid.uuid4().hex}")
    with graph.as_default():
        given = [None if value is None else tf.compat.v1.placeholder(value.dtype, value.shape) for value in inputs]
        made = list(function(*given))
    wanted = [value for value in made if value is not None]
    sources = {value.op: outer for value, outer in zip(given, inputs, strict=True) if value is not None}
    if any(op.type == "Placeholder" and op not in sources for op in _ancestors(wanted)):
        return None
    definition = tf.compat.v1.graph_util.extract_sub_graph(
        graph.as_graph_def(), sorted({value.op.name for value in wanted})
    )
    names = {node.name for node in definition.node}
    input_map = {f"{op.name}:0": outer for op, outer in sources.items() if op.name in names}
    found = iter(tf.graph_util.import_graph_def(definition, input_map, [value.name for value in wanted], name="masks"))
    return [None if value is None else next(found) for value in made]


def _ancestors(tensors: Iterable[Any]) -> list[Any]:
    """Returns the operations that some tensors depend on."""
    found: dict[Any, None] = {}
    waiting = [value.op for value in tensors]
    while waiting:
        op = waiting.pop()
        if op not in found:
            found[op] = None
            waiting += [each.op for each in op.inputs] + list(op.control_inputs)
    return list(found)
