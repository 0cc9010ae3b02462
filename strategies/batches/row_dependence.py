"""The dependence of a running step's tensors on their replica's rows, found from the operations that made them.

In a graph, the operations behind a tensor can be inspected, through calls of functions too. Eager operations leave
nothing behind: there each tensor is marked when it is made.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies._tf_internals import op_callbacks
from strategies.batches.row_kinds import Kind, Op
from strategies.batches.row_origins import Made
from strategies.batches.row_rules import kind_of

_MARK = "_keras_strategies_row_kind"
_SUMMED = "_keras_strategies_summed_over_rows"
_REDUCED = "_keras_strategies_reduced"
_PARTS = "_keras_strategies_parts"
_MADE = "_keras_strategies_made"
# Eager operations that are remembered although what they make has rows, or seems to: see `row_terms`.
_REMEMBERED = (
    "ScatterNd",
    "TensorScatterAdd",
    "Transpose",
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
    "UnsortedSegmentSum",
)
_REMEMBERED_OF_ALL = ("Bincount", "DenseBincount", "BatchMatMulV2", "MatMul")
# While tensors that are made in this thread, outside of graphs, are marked: numbers of rows, see `RowDependence`.
_marking: contextvars.ContextVar[Collection[int] | None] = contextvars.ContextVar(
    "keras_strategies_marking", default=None
)
# Elements up to which TensorFlow makes `tf.ones` and the like constants, while it traces.
_LARGEST_FOLDED_FILL = 999
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")


def mark(value: Any, kind: Kind) -> Any:
    """Marks a tensor as of a kind, for whoever asks later; returns it."""
    if isinstance(value, tf.Tensor):
        setattr(value, _MARK, kind)
    return value


def mark_summed(value: Any) -> Any:
    """Marks a tensor as a sum over the rows of all replicas, and so the same on all; returns it."""
    if isinstance(value, tf.Tensor):
        setattr(value, _SUMMED, True)
    return mark(value, Kind.SAME)


def mark_reduced(values: Any) -> Any:
    """Says of the tensors in a nest that they are results over all replicas, such as metrics; returns it."""
    for leaf in tf.nest.flatten(values):
        if isinstance(leaf, tf.Tensor):
            setattr(leaf, _REDUCED, True)
    return values


def is_reduced(value: Any) -> bool:
    """True if a value is the same on all replicas of all processes, because all have given their part of it."""
    return hasattr(value, _REDUCED)


@dataclass(frozen=True)
class _Call:
    """A call of a function: what its body takes comes from the operation's inputs."""

    op: Any
    outer: _Call | None


class _Place(NamedTuple):
    """A tensor of a graph, in the call of the function in whose body it is."""

    tensor: Any
    call: _Call | None

    @property
    def key(self) -> tuple[int, int]:
        return id(self.tensor), id(self.call)


class RowDependence:
    """Answers for the tensors of one replica in one step.

    Args:
        num_rows: that there are at a time, if known beforehand: a program that asks gets a plain number then.
        is_marked: whether tensors that are not in a graph were made inside :func:`marking`, in any thread.
        of_microbatches: whether the rows are some of each replica's: in a graph, a sum over those of all replicas is
            then no sum over the batch.
    """

    def __init__(
        self, num_rows: Collection[int] = (), *, is_marked: bool = False, of_microbatches: bool = False
    ) -> None:
        self._num_rows = num_rows
        self._is_marked = is_marked
        self._of_microbatches = of_microbatches
        self._known: dict[tuple[int, int], Kind] = {}
        # One for each call, so that the places in it have one key.
        self._calls: dict[tuple[int, int], _Call] = {}
        # Keeps alive the tensors and calls whose ids are keys of `_known`.
        self._kept: list[_Place] = []

    def kind(self, value: Any) -> Kind:
        """Returns the kind of a tensor; what is none is the same on all replicas."""
        if not isinstance(value, tf.Tensor):
            return Kind.SAME
        if hasattr(value, "numpy"):
            marked: Kind = getattr(value, _MARK, Kind.SAME if self._has_marks() else Kind.ROWS)
            return marked
        return self._found(_Place(value, None))

    def parts(self, value: tf.Tensor) -> list[tuple[Kind, Any]]:
        """Returns of what a vector is joined: for each part its kind and its size, int or int32 scalar, in order."""
        if hasattr(value, "numpy"):
            return _eager_parts(value) if self._has_marks() else [(Kind.ROWS, int(value.shape[0]))]
        return self._parts(_Place(value, None))

    def made(self, value: tf.Tensor) -> Made | None:
        """Returns the operation that made a tensor; None if it is not known, or a function's."""
        if hasattr(value, "numpy"):
            made: Made | None = getattr(value, _MADE, None)
            return made
        place: _Place | None = _Place(value, None)
        while place is not None and place.tensor.op.type == "Placeholder":
            if hasattr(place.tensor, _MARK):
                return None
            place = _source_of(place)
            if place is not None and hasattr(place.tensor, "numpy"):
                return None
        if place is None or _body_of(place.tensor.op) is not None:
            return None
        op = place.tensor.op
        return Made(op.type, list(op.inputs), place.tensor.value_index, lambda name: _attribute(op, name))

    def _has_marks(self) -> bool:
        """True if tensors that are not in a graph are marked: one without a mark is the same on all replicas."""
        return self._is_marked or _marking.get() is not None

    # ---- graphs

    def _found(self, place: _Place) -> Kind:
        """Goes down to where the kind is known, and comes back up: graphs are deeper than Python's stack."""
        waiting = [place]
        while waiting:
            current = waiting[-1]
            if current.key in self._known:
                waiting.pop()
                continue
            kind, behind = self._look(current)
            missing = [each for each in behind if each.key not in self._known]
            if kind is None and missing:
                waiting += missing
                continue
            self._kept.append(current)
            self._known[current.key] = kind or self._made(current, behind)
            waiting.pop()
        return self._known[place.key]

    def _look(self, place: _Place) -> tuple[Kind | None, list[_Place]]:
        """Returns the kind of a tensor, if it is known by itself, or of what it is made."""
        tensor, call = place
        is_partial = self._of_microbatches and hasattr(tensor, _SUMMED)
        kind = None if is_partial else getattr(tensor, _MARK, None)
        if kind is not None or hasattr(tensor, "numpy"):
            return kind or Kind.SAME, []
        op = tensor.op
        if op.type == "Placeholder":
            source = _source_of(place)
            if source is not None:
                return None, [source]
            return Kind.SAME if tensor.dtype in (tf.resource, tf.variant) else Kind.ROWS, []
        body = _body_of(op)
        if body is not None:
            inner = self._calls.setdefault((id(op), id(call)), _Call(op, call))
            return None, [_Place(body.outputs[tensor.value_index], inner)]
        return None, [_Place(each, call) for each in op.inputs]

    def _made(self, place: _Place, behind: Sequence[_Place]) -> Kind:
        op = place.tensor.op
        kinds = [self._known[each.key] for each in behind]
        if op.type == "Placeholder" or _body_of(op) is not None:
            return kinds[0]
        return kind_of(
            Op(
                "Fill" if _is_filled(op) else op.type,
                kinds,
                [each.shape.as_list() if each.shape.rank is not None else None for each in op.inputs],
                place.tensor.shape.rank,
                place.tensor.value_index,
                lambda i: _constant(op.inputs[i]),
                lambda name: _attribute(op, name),
                self._num_rows,
                place.tensor.shape[0] if place.tensor.shape.rank else None,
            )
        )

    def _parts(self, place: _Place) -> list[tuple[Kind, Any]]:
        tensor, call = place
        parts = self._parts_behind(place) or [(self._found(place), tensor.shape[0] if tensor.shape.rank else None)]
        is_here = call is None and not hasattr(tensor, "numpy") and tensor.graph is tf.compat.v1.get_default_graph()
        if len(parts) == 1 and parts[0][1] is None and is_here:
            return [(parts[0][0], tf.shape(tensor)[0])]
        return parts

    def _parts_behind(self, place: _Place) -> list[tuple[Kind, Any]]:
        """Those of what a vector is made of, if it only joins, hands on or renames; else none."""
        tensor, call = place
        if hasattr(tensor, _MARK) or hasattr(tensor, "numpy"):
            return []
        op = tensor.op
        body = _body_of(op)
        if body is not None:
            inner = self._calls.setdefault((id(op), id(call)), _Call(op, call))
            return self._parts(_Place(body.outputs[tensor.value_index], inner))
        if op.type == "Placeholder":
            source = _source_of(place)
            return [] if source is None else self._parts(source)
        if op.type == "ConcatV2":
            return [part for each in list(op.inputs)[:-1] for part in self._parts(_Place(each, call))]
        if op.type in ("Identity", "Reshape", "Cast") and op.inputs[0].shape.rank == 1:
            return self._parts(_Place(op.inputs[0], call))
        return []


def _source_of(place: _Place) -> _Place | None:
    """Returns the tensor that an input of a function comes from; None if it is an argument of the step."""
    tensor, call = place
    graph = tensor.graph
    if call is not None:
        position = next((i for i, each in enumerate(graph.inputs) if each is tensor), None)
        return None if position is None else _Place(call.op.inputs[position], call.outer)
    outside = next((outer for outer, inner in getattr(graph, "captures", ()) if inner is tensor), None)
    return None if outside is None else _Place(outside, None)


def _body_of(op: Any) -> Any:
    """The graph of the function that an operation calls; None if it calls none, or TensorFlow does not have it."""
    if op.type not in _CALLS:
        return None
    # No public name gives the functions of a graph.
    return getattr(op.graph._get_function(op.get_attr("f").name), "graph", None)


def _constant(tensor: Any) -> Any:
    """The value of a tensor of a graph, an array, if it is known; of a number taken from a known shape, too."""
    value = tf.get_static_value(tensor)
    if value is not None or hasattr(tensor, "numpy"):
        return value
    op = tensor.op
    if op.type == "StridedSlice" and op.get_attr("shrink_axis_mask") == 1:
        whole, begin = (_constant(each) for each in list(op.inputs)[:2])
        return None if whole is None or begin is None or begin.size != 1 else np.asarray(whole[int(begin[0])])
    if op.type == "Prod" and op.inputs[0].shape.rank == 1:
        whole = _constant(op.inputs[0])
        return None if whole is None else np.prod(whole)
    if op.type in ("Cast", "Identity"):
        return _constant(op.inputs[0])
    return None


def _is_filled(op: Any) -> bool:
    """True for a constant that TensorFlow has put in the place of a small `Fill`: ones in a shape that is known."""
    if op.type != "Const" or (op.outputs[0].shape.num_elements() or 0) > _LARGEST_FOLDED_FILL:
        return False
    value = tf.get_static_value(op.outputs[0])
    if value is None or value.ndim < 2 or not value.size:
        return False
    # With one row a factor of a user's, such as [[0.01]], looks like it. Positions are counted in integers.
    may_be_of_rows = value.shape[0] > 1 or not np.issubdtype(value.dtype, np.floating)
    return may_be_of_rows and bool(np.all(value == value.flat[0]))


def _attribute(op: Any, name: str) -> Any:
    try:
        return op.get_attr(name)
    except ValueError:
        return None


# ---- operations that run as they are called


@contextlib.contextmanager
def marking(arguments: Any, num_rows: Collection[int]) -> Iterator[None]:
    """Inside, in this thread, tensors are marked as they are made, unless they are of a graph.

    May be entered again: micro-batches of a replica have other numbers of rows than the replica.

    Args:
        arguments: of the step: what has rows in it.
        num_rows: see `RowDependence`.
    """
    if not tf.executing_eagerly():
        yield
        return
    for leaf in tf.nest.flatten(arguments, expand_composites=True):
        if isinstance(leaf, tf.Tensor) and leaf.dtype not in (tf.resource, tf.variant):
            mark(leaf, Kind.ROWS)
    callback = _callback() if _marking.get() is None else contextlib.nullcontext()
    token = _marking.set(num_rows)
    try:
        with callback:
            yield
    finally:
        _marking.reset(token)


@contextlib.contextmanager
def _callback() -> Iterator[None]:
    """Inside, TensorFlow tells of each operation."""
    # Replicas' threads have one list of callbacks: each has its own in it, which leaves the others' tensors alone.
    thread = threading.get_ident()

    def note(op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        num_rows = _marking.get()
        if graph is None and num_rows is not None and threading.get_ident() == thread:
            name = op_type.decode() if isinstance(op_type, bytes) else op_type
            _mark_outputs(name, list(inputs), attrs or (), list(outputs), num_rows)

    op_callbacks.add_op_callback(note)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(note)


def _mark_outputs(
    name: str, inputs: list[Any], attrs: Sequence[Any], outputs: list[Any], num_rows: Collection[int]
) -> None:
    kinds = [getattr(each, _MARK, Kind.SAME) for each in inputs]
    named = dict(zip(attrs[::2], attrs[1::2], strict=False))

    def constant(i: int) -> Any:
        return inputs[i].numpy() if kinds[i] is Kind.SAME else None

    for index, output in enumerate(outputs):
        if not isinstance(output, tf.Tensor) or output.dtype in (tf.resource, tf.variant):
            continue
        kind = kind_of(
            Op(
                name,
                kinds,
                [each.shape.as_list() if isinstance(each, tf.Tensor) else None for each in inputs],
                output.shape.rank,
                index,
                constant,
                named.get,
                num_rows,
                output.shape[0] if output.shape.rank else None,
            )
        )
        if kind is not Kind.SAME:
            mark(output, kind)
            if _is_remembered(name, kind, inputs):
                setattr(output, _MADE, Made(name, inputs, index, named.get))
        if name == "ConcatV2" and output.dtype.is_integer and output.shape.rank == 1:
            setattr(output, _PARTS, [part for each in inputs[:-1] for part in _eager_parts(each)])
        elif name in ("Reshape", "Identity", "Cast") and hasattr(inputs[0], _PARTS) and output.shape.rank == 1:
            setattr(output, _PARTS, getattr(inputs[0], _PARTS))


def _is_remembered(name: str, kind: Kind, inputs: Sequence[Any]) -> bool:
    """True of operations whose inputs are kept: of what has no rows, which is small, and of few others."""
    if name in _REMEMBERED or not kind.has_rows:
        return True
    if name in _REMEMBERED_OF_ALL:
        return kind is not Kind.ROWS
    return all(hasattr(each, _MADE) or not hasattr(each, _MARK) for each in inputs)


def _eager_parts(value: Any) -> list[tuple[Kind, Any]]:
    parts: list[tuple[Kind, Any]] | None = getattr(value, _PARTS, None)
    return [(getattr(value, _MARK, Kind.SAME), int(value.shape[0]))] if parts is None else parts
