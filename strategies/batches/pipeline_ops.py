"""Properties of the functions inside a ``tf.data`` pipeline, read from their graphs."""

from __future__ import annotations

import re
from typing import Any

from strategies._tf_internals import op_definitions

# Operations with state from which nothing is drawn: a row's result is the same, whatever rows were mapped before it.
# Python functions are the user's responsibility. Datasets inside a map are made anew for each row.
_HARMLESS = re.compile(
    r"Placeholder|Assert|Print\w*|LookupTable(Find|Size|Export)\w*|(Mutable)?HashTable\w*|VarHandleOp|ReadVariableOp|"
    r"ResourceGather\w*|(Eager)?PyFunc|StatefulPartitionedCall|If|While|Case|StatelessWhile|ReadFile|MatchingFiles|"
    r"(Tensor|TensorSlice|Range|TextLine|TFRecord|FixedLengthRecord)Dataset(V\d)?|DatasetToSingleElement|ReduceDataset"
)


def depends_on_its_arguments_only(function: Any) -> bool:
    """True if a traced function of a dataset gives a row the same result whatever rows it was called with before."""
    if not hasattr(function, "graph"):
        return False
    return all(_HARMLESS.fullmatch(op) or not op_definitions.get(op).is_stateful for op in _ops_in(function))


def reads_generator(dataset: Any) -> bool:
    """True if the dataset reads a Python generator.

    The user may go on reading the generator after leaving an iterator of the dataset before its end: elements that
    were prefetched would be missing there.
    """
    functions = [wrapper.function for wrapper in dataset._functions()]
    if any("GeneratorDataset" in _ops_in(function) for function in functions if hasattr(function, "graph")):
        return True
    return any(reads_generator(before) for before in dataset._inputs())


def _ops_in(function: Any) -> set[str]:
    """Returns the types of the operations in a concrete function and in those that it calls."""
    graph = function.graph.as_graph_def()
    called = {definition.signature.name for definition in graph.library.function}
    nodes = [graph.node, *(definition.node_def for definition in graph.library.function)]
    return {node.op for part in nodes for node in part if node.op not in called}
