"""Tensors of graphs, each in one call of the function that it belongs to, and where they come from.

The contract is tested in ``tests/strategies/batches/test_row_dependence.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any, NamedTuple

from strategies.batches.row_marks import Found

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


@dataclass(frozen=True)
class Call:
    """A call of a function: its arguments are the inputs of `op`, in the call `outer`, or have the kinds `given`."""

    op: Any
    outer: Call | None
    given: tuple[Found, ...] | None = None


class Node(NamedTuple):
    """A tensor of a graph, in one call of the function that it belongs to."""

    tensor: Any
    call: Call | None

    @property
    def key(self) -> tuple[int, int]:
        """Identifies the tensor in this call, as long as both exist."""
        return id(self.tensor), id(self.call)


def note_traced(placeholder: Any, tensor: Any, exchange: Callable[[Any], Any]) -> None:
    """Records which tensor of the traced replica a placeholder for a tensor of another replica corresponds to.

    Args:
        placeholder: the placeholder.
        tensor: the tensor of the replica that is traced.
        exchange: returns the other replica's tensor for one of the replica that is traced.
    """
    # Not among the marks, which tensors of other graphs take over: it keeps the graph of the tensor alive.
    placeholder._traced_as = tensor, exchange


def exchange_of(tensor: Any) -> Callable[[Any], Any] | None:
    """Returns what exchanges the tensors that a placeholder is computed from; None if it is not of another replica."""
    traced: tuple[Any, Callable[[Any], Any]] | None = getattr(tensor, "_traced_as", None)
    return None if traced is None else traced[1]


def note_source(constant: Any, op_type: str, tensor: Any) -> None:
    """Records the op that a program called, and its input, where TensorFlow made a constant of its static result."""
    constant._computed_by = op_type, tensor


def source_of_constant(tensor: Any) -> tuple[str, Any] | None:
    """Returns the type of the op that a program called for a constant, and the op's input; None if it is not known."""
    noted: tuple[str, Any] | None = getattr(tensor, "_computed_by", None)
    return noted


def source_of(node: Node) -> Node | None:
    """Returns the tensor that an input of a function comes from; None if it is an argument of the step."""
    tensor, call = node
    traced = getattr(tensor, "_traced_as", None)
    if traced is not None:
        return Node(traced[0], call)
    graph = tensor.graph
    if call is not None:
        position = next((i for i, each in enumerate(graph.inputs) if each is tensor), None)
        return None if position is None else Node(call.op.inputs[position], call.outer)
    outside = next((outer for outer, inner in getattr(graph, "captures", ()) if inner is tensor), None)
    return None if outside is None else Node(outside, None)


def body_of(op: Any) -> Any:
    """Returns the graph of the function that an operation calls; None if it calls none, or TensorFlow has no graph."""
    return graph_of(op, op.get_attr("f").name) if op.type in _CALLS else None


def graph_of(op: Any, name: str) -> Any:
    """Returns the graph of a function that an operation names; None if TensorFlow has none."""
    # No public API returns the functions of a graph.
    return getattr(op.graph._get_function(name), "graph", None)


def position_in_function(tensor: Any) -> int:
    """Returns the index of a tensor among the inputs of its function."""
    return next(i for i, each in enumerate(tensor.graph.inputs) if each is tensor)
