"""Properties of the functions inside a ``tf.data`` pipeline, read from their graphs."""

from __future__ import annotations

import re
from typing import Any

from strategies._tf_internals import op_definitions

# Stateful operations whose results do not depend on their state, and so not on the rows mapped before. Python functions
# are the user's responsibility. Datasets inside a map are created for each row.
_HARMLESS = re.compile(
    r"Placeholder|Assert|Print\w*|LookupTable(Find|Size|Export)\w*|(Mutable)?HashTable\w*|VarHandleOp|ReadVariableOp|"
    r"ResourceGather\w*|(Eager)?PyFunc|StatefulPartitionedCall|If|While|Case|StatelessWhile|ReadFile|MatchingFiles|"
    r"(Tensor|TensorSlice|Range|TextLine|TFRecord|FixedLengthRecord)Dataset(V\d)?|DatasetToSingleElement|ReduceDataset"
)


def depends_on_its_arguments_only(function: Any) -> bool:
    """Returns True if a traced function of a dataset maps a row to the same result whatever rows came before."""
    if not hasattr(function, "graph"):
        return False
    return not any(map(draws, ops_in(function)))


def draws(op: str) -> bool:
    """Returns True if an operation of this type has state that changes its result, such as a random generator's."""
    definition = op_definitions.get(op)
    return definition is not None and definition.is_stateful and not _HARMLESS.fullmatch(op)


def functions_in(graph: Any) -> dict[str, set[str]]:
    """Returns, for each function in the library of a ``GraphDef``, the operation types that a call of it runs."""
    own = {definition.signature.name: definition.node_def for definition in graph.library.function}

    def ops_of(name: str, outer: frozenset[str]) -> set[str]:
        found = set()
        for node in own[name]:
            found.add(node.op)
            for value in node.attr.values():
                for each in (value.func, *value.list.func):
                    if each.name in own and each.name not in outer:
                        found |= ops_of(each.name, outer | {each.name})
            if node.op in own and node.op not in outer:
                found |= ops_of(node.op, outer | {node.op})
        return found

    return {name: ops_of(name, frozenset([name])) - own.keys() for name in own}


def reads_generator(dataset: Any) -> bool:
    """Returns True if the dataset reads a Python generator.

    The user may stop iterating over the dataset before its end and go on reading the generator: elements that were
    prefetched would be missing there.
    """
    functions = [wrapper.function for wrapper in dataset._functions()]
    if any("GeneratorDataset" in ops_in(function) for function in functions if hasattr(function, "graph")):
        return True
    return any(reads_generator(before) for before in dataset._inputs())


def ops_in(function: Any) -> set[str]:
    """Returns the types of the operations in a concrete function and in the functions that it calls."""
    graph = function.graph.as_graph_def()
    called = {definition.signature.name for definition in graph.library.function}
    nodes = [graph.node, *(definition.node_def for definition in graph.library.function)]
    return {node.op for part in nodes for node in part if node.op not in called}
