"""Finds how a running step's tensors depend on their replica's rows, from the operations that made them.

In a graph, the operations that made a tensor can be inspected, also through calls of functions. Eager tensors are
marked when they are made (`row_marks`).
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from typing import Any

import tensorflow as tf

from strategies.batches.graph_nodes import (
    Call,
    Node,
    body_of,
    exchange_of,
    position_in_function,
    source_of,
    source_of_constant,
)
from strategies.batches.row_constants import attribute_of, constant_of, is_filled
from strategies.batches.row_context import Sizes
from strategies.batches.row_control_flow import BRANCHES, LOOPS, branch_results, loop_results
from strategies.batches.row_kinds import ROW_MAJOR, Kind, Op, ShardPart
from strategies.batches.row_marks import (
    Found,
    by_rules,
    is_marked_summed,
    is_marked_whole,
    is_marking,
    mark,
    marked_kind,
    marked_layout,
    marked_operation,
    marked_parts,
)
from strategies.batches.row_origins import Made

#: The name that TensorFlow gives to the constant of a replica's number.
_REPLICA_ID = "replica_id_in_sync_group"


class RowDependence:
    """Finds how the tensors of one replica in one step depend on its rows.

    Args:
        num_rows: the numbers of rows that the replica has at a time, if known beforehand: a program that reads a shape
            then gets plain numbers.
        is_marked: whether eager tensors were made inside :func:`marking`, in any thread.
        of_microbatches: whether the rows are only some of each replica's rows: in a graph, a sum over them on all
            replicas is then not a sum over the batch.
        num_all: the numbers of rows that the batch of all replicas has, as far as they are known beforehand.
        may_have_shards: whether weights may be in shards, over the devices of a replica or over replicas.
    """

    def __init__(
        self,
        num_rows: Collection[int] = (),
        *,
        is_marked: bool = False,
        of_microbatches: bool = False,
        num_all: Collection[int] = (),
        may_have_shards: bool = False,
    ) -> None:
        self.may_have_shards = may_have_shards
        self.sizes = Sizes(num_rows, num_all)
        self._is_marked = is_marked
        self._of_microbatches = of_microbatches
        self._known: dict[tuple[int, int], Found] = {}
        # The results of conditionals and loops.
        self._results: dict[tuple[int, int], list[Found]] = {}
        # One object for each call, so that the tensors in it have one key each.
        self._calls: dict[tuple[int, int], Call] = {}
        self._warned: dict[int, Any] = {}
        # Keeps alive the tensors and calls whose ids are keys of `_known`.
        self._kept: list[Node] = []

    def kind(self, value: Any) -> Kind:
        """Returns the kind of a tensor; any other value is the same on all replicas."""
        if not isinstance(value, tf.Tensor):
            return Kind.SAME
        if hasattr(value, "numpy"):
            return marked_kind(value) or (Kind.SAME if self._has_marks() else Kind.ROWS)
        return self._found(Node(value, None))[0]

    def shards(self, value: Any) -> ShardPart | None:
        """Returns the shards from which a tensor is computed; None if there are none, or all of their weights."""
        if not isinstance(value, tf.Tensor):
            return None
        layout = marked_layout(value) if hasattr(value, "numpy") else self._found(Node(value, None))[1]
        return layout.shards

    def is_number_of_rows(self, value: tf.Tensor) -> bool:
        """Returns True if a tensor is the number of rows itself, not a multiple of it."""
        kind, layout = self._found(Node(value, None))
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
                node = Node(leaf, None)
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
        node = Node(value, None)
        while True:
            _, sources = self._look(node)
            before = next((each for each in sources if is_of(self._found(each)[0])), None)
            if before is None or hasattr(before.tensor, "numpy"):
                return node.tensor
            node = before

    def is_one_for_each_row(self, value: tf.Tensor) -> bool:
        """Returns True if a tensor that has rows has one item for each row, along its first dimension."""
        layout = self._found(Node(value, None))[1]
        return layout.axis == 0 and layout.times == 1

    def parts(self, value: tf.Tensor) -> list[tuple[Kind, Any]]:
        """Returns the kind and the size (int or int32 scalar) of each part that a vector is concatenated from."""
        if hasattr(value, "numpy"):
            return marked_parts(value) if self._has_marks() else [(Kind.ROWS, int(value.shape[0]))]
        return self._parts(Node(value, None))

    def made(self, value: tf.Tensor) -> Made | None:
        """Returns the operation that made a tensor; None if it is unknown, or a call of a function."""
        if hasattr(value, "numpy"):
            return marked_operation(value)
        node: Node | None = Node(value, None)
        while node is not None and node.tensor.op.type == "Placeholder":
            if marked_kind(node.tensor) is not None:
                return None
            node = source_of(node)
            if node is not None and hasattr(node.tensor, "numpy"):
                return None
        if node is None or body_of(node.tensor.op) is not None:
            return None
        op = node.tensor.op
        return Made(op.type, list(op.inputs), node.tensor.value_index, lambda name: attribute_of(op, name))

    def _has_marks(self) -> bool:
        """Returns True if eager tensors are marked, so that one without a mark is the same on all replicas."""
        return self._is_marked or is_marking()

    # ---- graphs

    def _found(self, node: Node) -> Found:
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

    def _look(self, node: Node) -> tuple[Found | None, list[Node]]:
        """Returns the kind and layout of a tensor if known by itself, else None; and the tensors it is made from."""
        tensor, call = node
        is_partial = self._of_microbatches and is_marked_summed(tensor)
        kind = None if is_partial else marked_kind(tensor)
        if kind is not None or hasattr(tensor, "numpy"):
            return (kind or Kind.SAME, marked_layout(tensor)), []
        op = tensor.op
        if op.type == "Const" and op.name.rpartition("/")[2].startswith(_REPLICA_ID):
            return (Kind.DRAWN, ROW_MAJOR), []
        if op.type == "Placeholder":
            if call is not None and call.given is not None:
                return call.given[position_in_function(tensor)], []
            source = source_of(node)
            if source is not None:
                return None, [source]
            return (Kind.SAME if tensor.dtype in (tf.resource, tf.variant) else Kind.ROWS, ROW_MAJOR), []
        body = body_of(op)
        if body is not None:
            inner = self._calls.setdefault((id(op), id(call)), Call(op, call))
            return None, [Node(body.outputs[tensor.value_index], inner)]
        constant = source_of_constant(tensor)
        return None, [Node(each, call) for each in (op.inputs if constant is None else constant[1:])]

    def _made(self, node: Node, sources: Sequence[Node]) -> Found:
        tensor, call = node
        op = tensor.op
        found = [self._known[each.key] for each in sources]
        if op.type == "Placeholder" or body_of(op) is not None:
            return found[0]
        if op.type in LOOPS or op.type in BRANCHES:
            key = (id(op), id(call))
            if key not in self._results:
                results = loop_results if op.type in LOOPS else branch_results
                self._results[key] = results(op, found, self._body_results)
            return self._results[key][tensor.value_index]
        kind, layout = by_rules(
            Op(
                self._op_type(tensor),
                [kind for kind, _ in found],
                [each.shape.as_list() if each.shape.rank is not None else None for each, _ in sources],
                tensor.shape.rank,
                tensor.value_index,
                lambda i: constant_of(sources[i].tensor),
                lambda name: attribute_of(op, name),
                self.sizes.of_replica,
                tensor.shape[0] if tensor.shape.rank else None,
                [layout for _, layout in found],
                tensor.shape.as_list() if tensor.shape.rank is not None else None,
                self.sizes.of_all,
                tensor.dtype.is_integer,
            )
        )
        return kind, layout.with_shards(None) if is_marked_whole(tensor) else layout

    @staticmethod
    def _op_type(tensor: Any) -> str:
        """Returns the type of the op that a program called: TensorFlow makes constants of some."""
        constant = source_of_constant(tensor)
        if constant is not None:
            return constant[0]
        return "Fill" if is_filled(tensor.op) else str(tensor.op.type)

    def _body_results(self, op: Any, body: Any, given: Sequence[Found]) -> list[Found]:
        """Returns the kinds and layouts of a function's outputs for inputs of the given kinds and layouts."""
        call = Call(op, None, tuple(given))
        found = [self._found(Node(each, call)) for each in body.outputs]
        self._kept.append(Node(None, call))
        return found

    def _parts(self, node: Node, exchange: Callable[[Any], Any] = lambda tensor: tensor) -> list[tuple[Kind, Any]]:
        tensor, call = node
        parts = self._source_parts(node, exchange) or [
            (self._found(node)[0], tensor.shape[0] if tensor.shape.rank else None)
        ]
        is_in_graph = call is None and not hasattr(tensor, "numpy") and tensor.graph is tf.compat.v1.get_default_graph()
        if len(parts) == 1 and parts[0][1] is None and is_in_graph:
            return [(parts[0][0], tf.shape(exchange(tensor))[0])]
        return parts

    def _source_parts(self, node: Node, exchange: Callable[[Any], Any]) -> list[tuple[Kind, Any]]:
        """Returns the parts of the sources if the op only concatenates, forwards or reshapes; else []."""
        tensor, call = node
        if marked_kind(tensor) is not None or hasattr(tensor, "numpy"):
            return []
        op = tensor.op
        body = body_of(op)
        if body is not None:
            inner = self._calls.setdefault((id(op), id(call)), Call(op, call))
            return self._parts(Node(body.outputs[tensor.value_index], inner), exchange)
        if op.type == "Placeholder":
            source = source_of(node)
            return [] if source is None else self._parts(source, exchange_of(tensor) or exchange)
        if op.type == "ConcatV2":
            return [part for each in list(op.inputs)[:-1] for part in self._parts(Node(each, call), exchange)]
        if op.type in ("Identity", "Reshape", "Cast") and op.inputs[0].shape.rank == 1:
            return self._parts(Node(op.inputs[0], call), exchange)
        return []
