"""Copies of functions, such as the branches of a conditional, with the devices of another replica."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from typing import Any

from strategies._tf_internals import FunctionType, atomic_function, eager_context

# Tells apart the functions of all graphs: TensorFlow's runtime knows them by their names.
_counter = itertools.count()


class FunctionCopies:
    """The functions that ops of the other replicas call in one graph.

    Args:
        graph: the graph; it keeps the functions, and the runtime forgets them with it.
        device_of: returns the device of a replica, from the one of replica 0 and the replica's index.
    """

    def __init__(self, graph: Any, device_of: Callable[[str, int], str]) -> None:
        self._graph = graph
        self._device_of = device_of
        self._names: dict[tuple[str, int], str] = {}

    def let_call(self, node: Any, replica: int) -> bool:
        """Replaces the functions that an op calls by copies for a replica; returns True if there are any."""
        changed = False
        for function in _called(node):
            copied = self._copy(function.name, replica)
            changed |= copied != function.name
            function.name = copied
        return changed

    def _copy(self, name: str, replica: int) -> str:
        """Returns the name of a function for a replica: its own if it has no device and calls none that has one."""
        key = name, replica
        if key not in self._names:
            copy = type(definition := definition_of(name))()
            copy.CopyFrom(definition)
            changed = False
            for node in copy.node_def:
                device = self._device_of(node.device, replica)
                changed |= device != node.device
                node.device = device
                changed |= self.let_call(node, replica)
            self._names[key] = name
            if changed:
                copy.signature.name = f"{name}_replica_{replica}_{next(_counter)}"
                # Arguments and results are those of the original, for readers of the graph, such as TensorBoard.
                function_type = getattr(self._graph._get_function(name), "function_type", None) or FunctionType([])
                self._graph._add_function(atomic_function.from_function_def(copy, function_type))
                self._names[key] = copy.signature.name
        return self._names[key]


def definition_of(name: str) -> Any:
    """Returns the definition of a function of any graph."""
    return eager_context.context().get_function_def(name)


def functions_of(node: Any) -> list[str]:
    """Returns the names of the functions that an op calls."""
    return [function.name for function in _called(node)]


def _called(node: Any) -> Iterator[Any]:
    for value in node.attr.values():
        functions = [value.func] if value.HasField("func") else value.list.func if value.HasField("list") else ()
        yield from (function for function in functions if function.name)
