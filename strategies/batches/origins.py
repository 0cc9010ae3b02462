"""The origin of each tensor in a dataset's elements: the data alone, Python code, or random numbers.

Processes that read the same rows have the same tensors, except where a map draws random numbers: maps run in parallel,
and each process maps rows in an order of its own. Python code may draw numbers, too, and its graph does not show it.
The origin determines how much a difference between processes means. It is found in the graphs of the dataset's
functions.
"""

from __future__ import annotations

import enum
import re
from collections.abc import Iterable
from typing import Any

import tensorflow as tf

from strategies._tf_internals import MapDataset, ParallelMapDataset
from strategies.batches.pipeline_ops import draws, functions_in

#: Ops that run Python functions and generators.
_PYTHON = re.compile(r"(Eager)?PyFunc|PyFuncStateless|GeneratorDataset")


class Origin(enum.IntEnum):
    """The source of a tensor, ordered by how much it may differ between processes that read the same rows."""

    DATA = 0
    PYTHON = 1
    RANDOM = 2


def origins_of(dataset: tf.data.Dataset) -> list[Origin]:
    """Returns the origin of each leaf of the dataset's elements, in the order of ``tf.nest.flatten``."""
    before = [origins_of(each) for each in dataset._inputs()]
    given = [origin for each in before for origin in each]
    size = len(tf.nest.flatten(dataset.element_spec))
    functions = [wrapper.function for wrapper in dataset._functions()]
    if isinstance(dataset, (MapDataset, ParallelMapDataset)):
        [function] = functions
        found = _output_origins(function, given) if hasattr(function, "graph") else []
        if len(found) == size:
            return found
    own = max((_function_origin(function) for function in functions), default=Origin.DATA)
    if own == Origin.DATA and len(given) == size:
        # batch, repeat, filter, zip and the like.
        return given
    return [max([own, *given])] * size


def _function_origin(function: Any) -> Origin:
    if not hasattr(function, "graph"):
        return Origin.PYTHON
    graph = function.graph.as_graph_def()
    ops = {node.op for node in graph.node} | {op for ops in functions_in(graph).values() for op in ops}
    return _ops_origin(ops)


def _ops_origin(ops: Iterable[str]) -> Origin:
    ops = list(ops)
    if any(draws(op) and not _PYTHON.fullmatch(op) for op in ops):
        return Origin.RANDOM
    return Origin.PYTHON if any(map(_PYTHON.fullmatch, ops)) else Origin.DATA


def _output_origins(function: Any, given: list[Origin]) -> list[Origin]:
    """Returns the origins of a traced function's results, given those of its arguments; [] if their number differs."""
    graph = function.graph
    arguments = graph.inputs[: len(graph.inputs) - len(function.captured_inputs)]
    if len(arguments) != len(given):
        return []
    called = functions_in(graph.as_graph_def())
    # The value of a variable that the function writes depends on the order of rows.
    is_written = any("Assign" in op.type for op in graph.get_operations())
    origins = {tensor.ref(): origin for tensor, origin in zip(arguments, given, strict=True)}
    # Operations are listed in the order in which they were made, so each comes after its inputs.
    for op in graph.get_operations():
        if op.type == "Placeholder":
            continue
        names = [value.name for value in op.node_def.attr.values() for value in _functions_of(value)]
        inside = {each for name in names for each in called.get(name, ())} - {"ReadVariableOp"}
        own = Origin.RANDOM if is_written and op.type == "ReadVariableOp" else _ops_origin({op.type, *inside})
        own = max([own, *(origins.get(tensor.ref(), Origin.DATA) for tensor in op.inputs)])
        origins.update({tensor.ref(): own for tensor in op.outputs})
    return [origins.get(tensor.ref(), Origin.DATA) for tensor in graph.outputs]


def _functions_of(attribute: Any) -> list[Any]:
    return [attribute.func, *attribute.list.func]
