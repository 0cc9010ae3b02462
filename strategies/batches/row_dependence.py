"""Finds how a running step's tensors depend on their replica's rows, from the operations that made them.

In a graph, the operations that made a tensor can be inspected, also through calls of functions. Eager tensors are
marked when they are made (`row_marks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.batches.row_constants import attribute_of, constant_of, is_filled
from strategies.batches.row_kinds import ROW_MAJOR, Kind, Layout, Op
from strategies.batches.row_marks import (
    Found,
    Sizes,
    by_rules,
    is_marked_summed,
    is_marking,
    mark,
    marked_kind,
    marked_layout,
    marked_operation,
    marked_parts,
)
from strategies.batches.row_origins import Made
from strategies.batches.row_rules import joined

_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("StatelessWhile", "While")
_BRANCHES = {
    "Case": ("branches",),
    "If": ("then_branch", "else_branch"),
    "StatelessCase": ("branches",),
    "StatelessIf": ("then_branch", "else_branch"),
}
_LARGEST_NUMBER_OF_ROUNDS = 8
_FIXED: Found = (Kind.SAME, ROW_MAJOR)


@dataclass(frozen=True)
class _Call:
    """A call of a function: its arguments are the inputs of `op`, in the call `outer`, or have the kinds `given`."""

    op: Any
    outer: _Call | None
    given: tuple[Found, ...] | None = None


class _Node(NamedTuple):
    """A tensor of a graph, in one call of the function that it belongs to."""

    tensor: Any
    call: _Call | None

    @property
    def key(self) -> tuple[int, int]:
        return id(self.tensor), id(self.call)


class RowDependence:
    """Finds how the tensors of one replica in one step depend on its rows.

    Args:
        num_rows: the numbers of rows that the replica has at a time, if known beforehand: a program that reads a shape
            then gets plain numbers.
        is_marked: whether eager tensors were made inside :func:`marking`, in any thread.
        of_microbatches: whether the rows are only some of each replica's rows: in a graph, a sum over them on all
            replicas is then not a sum over the batch.
        num_all: the numbers of rows that the batch of all replicas has, as far as they are known beforehand.
    """

    def __init__(
        self,
        num_rows: Collection[int] = (),
        *,
        is_marked: bool = False,
        of_microbatches: bool = False,
        num_all: Collection[int] = (),
    ) -> None:
        self.sizes = Sizes(num_rows, num_all)
        self._is_marked = is_marked
        self._of_microbatches = of_microbatches
        self._known: dict[tuple[int, int], Found] = {}
        # The results of conditionals and loops.
        self._results: dict[tuple[int, int], list[Found]] = {}
        # One object for each call, so that the tensors in it have one key each.
        self._calls: dict[tuple[int, int], _Call] = {}
        self._warned: dict[int, Any] = {}
        # Keeps alive the tensors and calls whose ids are keys of `_known`.
        self._kept: list[_Node] = []

    def kind(self, value: Any) -> Kind:
        """Returns the kind of a tensor; any other value is the same on all replicas."""
        if not isinstance(value, tf.Tensor):
            return Kind.SAME
        if hasattr(value, "numpy"):
            return marked_kind(value) or (Kind.SAME if self._has_marks() else Kind.ROWS)
        kind, layout = self._found(_Node(value, None))
        return Kind.COUNT if layout.may_count and value.shape.rank == 0 else kind

    def is_number_of_rows(self, value: tf.Tensor) -> bool:
        """Returns True if a tensor is the number of rows itself, not a multiple of it."""
        kind, layout = self._found(_Node(value, None))
        return kind is Kind.COUNT and layout.times == 1

    def is_first_asked(self, origin: Any) -> bool:
        """Returns True the first time that it is called for a tensor, so that each causes one warning only."""
        is_new = id(origin) not in self._warned
        self._warned[id(origin)] = origin
        return is_new

    def take_as_rows(self, value: Any) -> None:
        """Treats the tensors of a nest as `Kind.ROWS` from now on, after a warning about their true kind."""
        for leaf in tf.nest.flatten(value):
            if isinstance(leaf, tf.Tensor):
                node = _Node(leaf, None)
                self._kept.append(node)
                self._known[node.key] = (Kind.ROWS, ROW_MAJOR)
                mark(leaf, Kind.ROWS)

    def origin(self, value: Any, is_of: Callable[[Kind], bool]) -> Any:
        """Returns the tensor that brought in the kind of `value`: its kind satisfies `is_of`, its inputs' kinds do not.

        An eager `value` is returned itself.

        Args:
            value: a tensor whose kind satisfies `is_of`.
            is_of: a condition on kinds.
        """
        if not isinstance(value, tf.Tensor) or hasattr(value, "numpy"):
            return value
        node = _Node(value, None)
        while True:
            _, sources = self._look(node)
            before = next((each for each in sources if is_of(self._found(each)[0])), None)
            if before is None or hasattr(before.tensor, "numpy"):
                return node.tensor
            node = before

    def is_one_for_each_row(self, value: tf.Tensor) -> bool:
        """Returns True if a tensor that has rows has one item for each row, along its first dimension."""
        layout = self._found(_Node(value, None))[1]
        return layout.axis == 0 and layout.times == 1

    def parts(self, value: tf.Tensor) -> list[tuple[Kind, Any]]:
        """Returns the kind and the size (int or int32 scalar) of each part that a vector is concatenated from."""
        if hasattr(value, "numpy"):
            return marked_parts(value) if self._has_marks() else [(Kind.ROWS, int(value.shape[0]))]
        return self._parts(_Node(value, None))

    def made(self, value: tf.Tensor) -> Made | None:
        """Returns the operation that made a tensor; None if it is unknown, or a call of a function."""
        if hasattr(value, "numpy"):
            return marked_operation(value)
        node: _Node | None = _Node(value, None)
        while node is not None and node.tensor.op.type == "Placeholder":
            if marked_kind(node.tensor) is not None:
                return None
            node = _source_of(node)
            if node is not None and hasattr(node.tensor, "numpy"):
                return None
        if node is None or _body_of(node.tensor.op) is not None:
            return None
        op = node.tensor.op
        return Made(op.type, list(op.inputs), node.tensor.value_index, lambda name: attribute_of(op, name))

    def _has_marks(self) -> bool:
        """Returns True if eager tensors are marked, so that one without a mark is the same on all replicas."""
        return self._is_marked or is_marking()

    # ---- graphs

    def _found(self, node: _Node) -> Found:
        """Returns the kind and layout of a tensor. It does not recurse: graphs are deeper than Python's stack."""
        waiting = [node]
        while waiting:
            current = waiting[-1]
            if current.key in self._known:
                waiting.pop()
                continue
            found, sources = self._look(current)
            missing = [each for each in sources if each.key not in self._known]
            if found is None and missing:
                waiting += missing
                continue
            self._kept.append(current)
            self._known[current.key] = found or self._made(current, sources)
            waiting.pop()
        return self._known[node.key]

    def _look(self, node: _Node) -> tuple[Found | None, list[_Node]]:
        """Returns the kind and layout of a tensor if known by itself, else None; and the tensors it is made from."""
        tensor, call = node
        is_partial = self._of_microbatches and is_marked_summed(tensor)
        kind = None if is_partial else marked_kind(tensor)
        if kind is not None or hasattr(tensor, "numpy"):
            return (kind or Kind.SAME, marked_layout(tensor)), []
        op = tensor.op
        if op.type == "Placeholder":
            if call is not None and call.given is not None:
                return call.given[_position(tensor)], []
            source = _source_of(node)
            if source is not None:
                return None, [source]
            return (Kind.SAME if tensor.dtype in (tf.resource, tf.variant) else Kind.ROWS, ROW_MAJOR), []
        body = _body_of(op)
        if body is not None:
            inner = self._calls.setdefault((id(op), id(call)), _Call(op, call))
            return None, [_Node(body.outputs[tensor.value_index], inner)]
        return None, [_Node(each, call) for each in op.inputs]

    def _made(self, node: _Node, sources: Sequence[_Node]) -> Found:
        tensor, call = node
        op = tensor.op
        found = [self._known[each.key] for each in sources]
        if op.type == "Placeholder" or _body_of(op) is not None:
            return found[0]
        if op.type in _LOOPS or op.type in _BRANCHES:
            key = (id(op), id(call))
            if key not in self._results:
                self._results[key] = (
                    self._loop_results(op, found) if op.type in _LOOPS else self._branch_results(op, found)
                )
            return self._results[key][tensor.value_index]
        if op.type == "Const" and self._is_shape(tensor):
            return Kind.SAME, Layout(may_count=True)
        return by_rules(
            Op(
                "Fill" if is_filled(op) else op.type,
                [kind for kind, _ in found],
                [each.shape.as_list() if each.shape.rank is not None else None for each in op.inputs],
                tensor.shape.rank,
                tensor.value_index,
                lambda i: constant_of(op.inputs[i]),
                lambda name: attribute_of(op, name),
                self.sizes.of_replica,
                tensor.shape[0] if tensor.shape.rank else None,
                [layout for _, layout in found],
                tensor.shape.as_list() if tensor.shape.rank is not None else None,
                self.sizes.of_all,
                tensor.dtype.is_integer,
            )
        )

    def _is_shape(self, tensor: Any) -> bool:
        """Returns True for a constant that `tf.shape` made of a static shape beginning with a known number of rows."""
        name = tensor.op.name.rpartition("/")[2].partition("_")[0]
        if name != "Shape" or tensor.shape.rank != 1 or not tensor.shape[0]:
            return False
        return int(tf.get_static_value(tensor)[0]) in self.sizes.of_replica

    def _loop_results(self, op: Any, given: Sequence[Found]) -> list[Found]:
        """Returns the kinds and layouts of a loop's results, iterating the body's rules until they no longer change."""
        body = _graph_of(op, op.get_attr("body").name)
        if body is None:
            return [(Kind.UNKNOWN, ROW_MAJOR)] * len(op.outputs)
        state = list(given)
        for _ in range(_LARGEST_NUMBER_OF_ROUNDS):
            made = self._body_results(op, body, state)
            after = [_joined(one, other) for one, other in zip(state, made, strict=True)]
            if after == state:
                break
            state = after
        # A value that is carried from one row to the next mixes rows; a list that collects one item per row does not.
        carries = any(
            kind.has_rows and layout.axis < 0 and output.dtype != tf.variant
            for (kind, layout), output in zip(state, op.outputs, strict=True)
        )
        return [(Kind.UNKNOWN, ROW_MAJOR) if carries and kind.has_rows else (kind, layout) for kind, layout in state]

    def _branch_results(self, op: Any, given: Sequence[Found]) -> list[Found]:
        condition, *rest = given
        listed = op.get_attr("branches") if op.type in ("Case", "StatelessCase") else None
        names = [each.name for each in listed or [op.get_attr(name) for name in _BRANCHES[op.type]]]
        graphs = [_graph_of(op, name) for name in names]
        if any(graph is None for graph in graphs):
            return [(Kind.UNKNOWN, ROW_MAJOR)] * len(op.outputs)
        first, *others = (self._body_results(op, graph, rest) for graph in graphs)
        for other in others:
            first = [_joined(one, each) for one, each in zip(first, other, strict=True)]
        if condition[0].is_fixed or condition[0] is Kind.COUNT:
            return first
        return [each if each[0].is_fixed else (Kind.UNKNOWN, each[1]) for each in first]

    def _body_results(self, op: Any, body: Any, given: Sequence[Found]) -> list[Found]:
        """Returns the kinds and layouts of a function's outputs for inputs of the given kinds and layouts."""
        call = _Call(op, None, tuple(given))
        found = [self._found(_Node(each, call)) for each in body.outputs]
        self._kept.append(_Node(None, call))
        return found

    def _parts(self, node: _Node) -> list[tuple[Kind, Any]]:
        tensor, call = node
        parts = self._source_parts(node) or [(self._found(node)[0], tensor.shape[0] if tensor.shape.rank else None)]
        is_in_graph = call is None and not hasattr(tensor, "numpy") and tensor.graph is tf.compat.v1.get_default_graph()
        if len(parts) == 1 and parts[0][1] is None and is_in_graph:
            return [(parts[0][0], tf.shape(tensor)[0])]
        return parts

    def _source_parts(self, node: _Node) -> list[tuple[Kind, Any]]:
        """Returns the parts of the sources if the op only concatenates, forwards or reshapes; else []."""
        tensor, call = node
        if marked_kind(tensor) is not None or hasattr(tensor, "numpy"):
            return []
        op = tensor.op
        body = _body_of(op)
        if body is not None:
            inner = self._calls.setdefault((id(op), id(call)), _Call(op, call))
            return self._parts(_Node(body.outputs[tensor.value_index], inner))
        if op.type == "Placeholder":
            source = _source_of(node)
            return [] if source is None else self._parts(source)
        if op.type == "ConcatV2":
            return [part for each in list(op.inputs)[:-1] for part in self._parts(_Node(each, call))]
        if op.type in ("Identity", "Reshape", "Cast") and op.inputs[0].shape.rank == 1:
            return self._parts(_Node(op.inputs[0], call))
        return []


def _source_of(node: _Node) -> _Node | None:
    """Returns the tensor that an input of a function comes from; None if it is an argument of the step."""
    tensor, call = node
    graph = tensor.graph
    if call is not None:
        position = next((i for i, each in enumerate(graph.inputs) if each is tensor), None)
        return None if position is None else _Node(call.op.inputs[position], call.outer)
    outside = next((outer for outer, inner in getattr(graph, "captures", ()) if inner is tensor), None)
    return None if outside is None else _Node(outside, None)


def _body_of(op: Any) -> Any:
    """Returns the graph of the function that an operation calls; None if it calls none, or TensorFlow has no graph."""
    return _graph_of(op, op.get_attr("f").name) if op.type in _CALLS else None


def _graph_of(op: Any, name: str) -> Any:
    # No public API returns the functions of a graph.
    return getattr(op.graph._get_function(name), "graph", None)


def _position(tensor: Any) -> int:
    """Returns the index of a tensor among the inputs of its function."""
    return next(i for i, each in enumerate(tensor.graph.inputs) if each is tensor)


def _joined(one: Found, other: Found) -> Found:
    """Returns the kind and layout of a value that has either of two, as after a conditional."""
    if one == other:
        return one
    kind = joined(one[0], other[0])
    if one[0].is_fixed or other[0].is_fixed:
        return kind, other[1] if one[0].is_fixed else one[1]
    if kind.has_rows and one[1].axis != other[1].axis:
        return Kind.UNKNOWN, ROW_MAJOR
    return kind, one[1]
