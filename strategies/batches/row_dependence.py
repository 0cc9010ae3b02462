"""The dependence of a running step's tensors on their replica's rows, found from the operations that made them.

In a graph, the operations behind a tensor can be inspected, through calls of functions too. Eager operations leave
nothing behind: there each tensor is marked when it is made.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Callable, Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any, NamedTuple

import numpy as np
import tensorflow as tf

from strategies._tf_internals import op_callbacks
from strategies.batches.row_kinds import ROW_MAJOR, Kind, Layout, Op
from strategies.batches.row_layouts import layout_of
from strategies.batches.row_origins import Made
from strategies.batches.row_rules import joined, kind_of

_MARK = "_keras_strategies_row_kind"
_LAYOUT = "_keras_strategies_row_layout"
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
_marking: contextvars.ContextVar[Sizes | None] = contextvars.ContextVar("keras_strategies_marking", default=None)
# Elements up to which TensorFlow makes `tf.ones` and the like constants, while it traces.
_LARGEST_FOLDED_FILL = 999
_CALLS = ("PartitionedCall", "StatefulPartitionedCall")
_LOOPS = ("StatelessWhile", "While")
_BRANCHES = {
    "Case": ("branches",),
    "If": ("then_branch", "else_branch"),
    "StatelessCase": ("branches",),
    "StatelessIf": ("then_branch", "else_branch"),
}
_COMPUTED: dict[str, Any] = {
    "AddV2": np.add,
    "ConcatV2": lambda *values: np.concatenate(values[:-1], int(values[-1])),
    "ExpandDims": lambda value, dim: np.expand_dims(value, int(dim)),
    "FloorMod": np.mod,
    "Mul": np.multiply,
    "Pack": lambda *values: np.stack(values),
    "Range": np.arange,
    "Sub": np.subtract,
}
_LARGEST_NUMBER_OF_ROUNDS = 8
# The kind of a tensor, and the place of the rows in it.
_Found = tuple[Kind, Layout]
_FIXED: _Found = (Kind.SAME, ROW_MAJOR)


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
class Sizes:
    """The numbers of rows that are known beforehand.

    Attributes:
        of_replica: that one replica has at a time.
        of_all: that the batch has on all replicas.
    """

    of_replica: Collection[int] = ()
    of_all: Collection[int] = ()


@dataclass(frozen=True)
class _Call:
    """A call of a function: what its body takes comes from the operation's inputs."""

    op: Any
    outer: _Call | None
    given: tuple[_Found, ...] | None = None


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
        self._known: dict[tuple[int, int], _Found] = {}
        # Of conditionals and loops, what each makes.
        self._results: dict[tuple[int, int], list[_Found]] = {}
        # One for each call, so that the places in it have one key.
        self._calls: dict[tuple[int, int], _Call] = {}
        self._said: dict[int, Any] = {}
        # Keeps alive the tensors and calls whose ids are keys of `_known`.
        self._kept: list[_Place] = []

    def kind(self, value: Any) -> Kind:
        """Returns the kind of a tensor; what is none is the same on all replicas."""
        if not isinstance(value, tf.Tensor):
            return Kind.SAME
        if hasattr(value, "numpy"):
            marked: Kind = getattr(value, _MARK, Kind.SAME if self._has_marks() else Kind.ROWS)
            return marked
        kind, layout = self._found(_Place(value, None))
        return Kind.COUNT if layout.may_count and value.shape.rank == 0 else kind

    def is_number_of_rows(self, value: tf.Tensor) -> bool:
        """True if a tensor is the number of rows, not some times it."""
        kind, layout = self._found(_Place(value, None))
        return kind is Kind.COUNT and layout.times == 1

    def is_first_asked(self, origin: Any) -> bool:
        """True the first time that it is called for a tensor, of which one warning is enough."""
        is_new = id(origin) not in self._said
        self._said[id(origin)] = origin
        return is_new

    def take_as_rows(self, value: Any) -> None:
        """Takes tensors of a nest for what has something for each row from now on: what they are has been said."""
        for leaf in tf.nest.flatten(value):
            if isinstance(leaf, tf.Tensor):
                place = _Place(leaf, None)
                self._kept.append(place)
                self._known[place.key] = (Kind.ROWS, ROW_MAJOR)
                mark(leaf, Kind.ROWS)

    def origin(self, value: Any, is_of: Callable[[Kind], bool]) -> Any:
        """Returns the first tensor of those that `value` is made of whose kind is such, and that of no input is.

        `value` itself, if it is not in a graph.

        Args:
            value: a tensor of such a kind.
            is_of: tells whether a kind is such.
        """
        if not isinstance(value, tf.Tensor) or hasattr(value, "numpy"):
            return value
        place = _Place(value, None)
        while True:
            _, sources = self._look(place)
            before = next((each for each in sources if is_of(self._found(each)[0])), None)
            if before is None or hasattr(before.tensor, "numpy"):
                return place.tensor
            place = before

    def is_one_for_each_row(self, value: tf.Tensor) -> bool:
        """True if a tensor that has rows has one item for each of them, along its first dimension."""
        layout = self._found(_Place(value, None))[1]
        return layout.axis == 0 and layout.times == 1

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

    def _found(self, place: _Place) -> _Found:
        """Goes down to where the kind is known, and comes back up: graphs are deeper than Python's stack."""
        waiting = [place]
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
        return self._known[place.key]

    def _look(self, place: _Place) -> tuple[_Found | None, list[_Place]]:
        """Returns the kind of a tensor, if it is known by itself, or of what it is made."""
        tensor, call = place
        is_partial = self._of_microbatches and hasattr(tensor, _SUMMED)
        kind = None if is_partial else getattr(tensor, _MARK, None)
        if kind is not None or hasattr(tensor, "numpy"):
            return (kind or Kind.SAME, getattr(tensor, _LAYOUT, ROW_MAJOR)), []
        op = tensor.op
        if op.type == "Placeholder":
            if call is not None and call.given is not None:
                return call.given[_position(tensor)], []
            source = _source_of(place)
            if source is not None:
                return None, [source]
            return (Kind.SAME if tensor.dtype in (tf.resource, tf.variant) else Kind.ROWS, ROW_MAJOR), []
        body = _body_of(op)
        if body is not None:
            inner = self._calls.setdefault((id(op), id(call)), _Call(op, call))
            return None, [_Place(body.outputs[tensor.value_index], inner)]
        return None, [_Place(each, call) for each in op.inputs]

    def _made(self, place: _Place, sources: Sequence[_Place]) -> _Found:
        tensor, call = place
        op = tensor.op
        found = [self._known[each.key] for each in sources]
        if op.type == "Placeholder" or _body_of(op) is not None:
            return found[0]
        if op.type in _LOOPS or op.type in _BRANCHES:
            key = (id(op), id(call))
            if key not in self._results:
                self._results[key] = self._of_loop(op, found) if op.type in _LOOPS else self._of_branches(op, found)
            return self._results[key][tensor.value_index]
        if op.type == "Const" and self._is_shape(tensor):
            return Kind.SAME, Layout(may_count=True)
        return _result(
            Op(
                "Fill" if _is_filled(op) else op.type,
                [kind for kind, _ in found],
                [each.shape.as_list() if each.shape.rank is not None else None for each in op.inputs],
                tensor.shape.rank,
                tensor.value_index,
                lambda i: _constant(op.inputs[i]),
                lambda name: _attribute(op, name),
                self.sizes.of_replica,
                tensor.shape[0] if tensor.shape.rank else None,
                [layout for _, layout in found],
                tensor.shape.as_list() if tensor.shape.rank is not None else None,
                self.sizes.of_all,
                tensor.dtype.is_integer,
            )
        )

    def _is_shape(self, tensor: Any) -> bool:
        """True for a constant that `tf.shape` has put in the place of a shape that begins with the number of rows."""
        name = tensor.op.name.rpartition("/")[2].partition("_")[0]
        if name != "Shape" or tensor.shape.rank != 1 or not tensor.shape[0]:
            return False
        return int(tf.get_static_value(tensor)[0]) in self.sizes.of_replica

    def _of_loop(self, op: Any, given: Sequence[_Found]) -> list[_Found]:
        """Returns what a loop makes of its variables: what each turn may make of what the one before made."""
        body = _graph_of(op, op.get_attr("body").name)
        if body is None:
            return [(Kind.UNKNOWN, ROW_MAJOR)] * len(op.outputs)
        state = list(given)
        for _ in range(_LARGEST_NUMBER_OF_ROUNDS):
            made = self._of_body(op, body, state)
            after = [_joined(one, other) for one, other in zip(state, made, strict=True)]
            if after == state:
                break
            state = after
        # What goes from a row to the next mixes them; a list in which each row is put down does not.
        carries = any(
            kind.has_rows and layout.axis < 0 and output.dtype != tf.variant
            for (kind, layout), output in zip(state, op.outputs, strict=True)
        )
        return [(Kind.UNKNOWN, ROW_MAJOR) if carries and kind.has_rows else (kind, layout) for kind, layout in state]

    def _of_branches(self, op: Any, given: Sequence[_Found]) -> list[_Found]:
        condition, *rest = given
        listed = op.get_attr("branches") if op.type in ("Case", "StatelessCase") else None
        names = [each.name for each in listed or [op.get_attr(name) for name in _BRANCHES[op.type]]]
        graphs = [_graph_of(op, name) for name in names]
        if any(graph is None for graph in graphs):
            return [(Kind.UNKNOWN, ROW_MAJOR)] * len(op.outputs)
        first, *others = (self._of_body(op, graph, rest) for graph in graphs)
        for other in others:
            first = [_joined(one, each) for one, each in zip(first, other, strict=True)]
        if condition[0].is_fixed or condition[0] is Kind.COUNT:
            return first
        return [each if each[0].is_fixed else (Kind.UNKNOWN, each[1]) for each in first]

    def _of_body(self, op: Any, body: Any, given: Sequence[_Found]) -> list[_Found]:
        """Returns what a function makes of inputs of these kinds."""
        call = _Call(op, None, tuple(given))
        found = [self._found(_Place(each, call)) for each in body.outputs]
        self._kept.append(_Place(None, call))
        return found

    def _parts(self, place: _Place) -> list[tuple[Kind, Any]]:
        tensor, call = place
        parts = self._parts_behind(place) or [(self._found(place)[0], tensor.shape[0] if tensor.shape.rank else None)]
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
    return _graph_of(op, op.get_attr("f").name) if op.type in _CALLS else None


def _graph_of(op: Any, name: str) -> Any:
    # No public name gives the functions of a graph.
    return getattr(op.graph._get_function(name), "graph", None)


def _position(tensor: Any) -> int:
    """Returns the number of the input of its function that a tensor is."""
    return next(i for i, each in enumerate(tensor.graph.inputs) if each is tensor)


def _result(op: Op) -> _Found:
    kind = kind_of(op)
    return kind, layout_of(op, kind)


def _joined(one: _Found, other: _Found) -> _Found:
    """Returns the kind, and the place of rows, of what is one or the other."""
    if one == other:
        return one
    kind = joined(one[0], other[0])
    if one[0].is_fixed or other[0].is_fixed:
        return kind, other[1] if one[0].is_fixed else one[1]
    if kind.has_rows and one[1].axis != other[1].axis:
        return Kind.UNKNOWN, ROW_MAJOR
    return kind, one[1]


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
    if op.type in _COMPUTED and tensor.dtype.is_integer:
        # Numbers of dimensions, and permutations of them.
        values = [_constant(each) for each in op.inputs]
        return None if any(each is None for each in values) else np.asarray(_COMPUTED[op.type](*values))
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
def marking(arguments: Any, sizes: Sizes) -> Iterator[None]:
    """Marks arguments of a step; inside, in this thread, tensors as they are made, unless they are of a graph.

    In a graph their operations show what they are made of, but for the arguments: how a batch was cut is no part of the
    step. May be entered again: micro-batches of a replica have other numbers of rows than the replica.

    Args:
        arguments: of the step: what has rows in it.
        sizes: the numbers of rows that are known.
    """
    for leaf in tf.nest.flatten(arguments):
        for each in tf.nest.flatten(leaf, expand_composites=True):
            if not isinstance(each, tf.Tensor) or each.dtype in (tf.resource, tf.variant):
                continue
            if each.shape.rank != 0 or tf.executing_eagerly():
                mark(each, Kind.ROWS)
        if isinstance(leaf, tf.SparseTensor):
            mark(leaf.dense_shape, Kind.SHAPE)
    if not tf.executing_eagerly():
        yield
        return
    callback = _callback() if _marking.get() is None else contextlib.nullcontext()
    token = _marking.set(sizes)
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
        sizes = _marking.get()
        if graph is None and sizes is not None and threading.get_ident() == thread:
            name = op_type.decode() if isinstance(op_type, bytes) else op_type
            _mark_outputs(name, list(inputs), attrs or (), list(outputs), sizes)

    op_callbacks.add_op_callback(note)
    try:
        yield
    finally:
        op_callbacks.remove_op_callback(note)


def _mark_outputs(name: str, inputs: list[Any], attrs: Sequence[Any], outputs: list[Any], sizes: Sizes) -> None:
    kinds = [getattr(each, _MARK, Kind.SAME) for each in inputs]
    layouts = [getattr(each, _LAYOUT, ROW_MAJOR) for each in inputs]
    named = dict(zip(attrs[::2], attrs[1::2], strict=False))

    def constant(i: int) -> Any:
        return inputs[i].numpy() if kinds[i] is Kind.SAME and inputs[i].dtype != tf.variant else None

    for index, output in enumerate(outputs):
        if not isinstance(output, tf.Tensor) or output.dtype == tf.resource:
            continue
        kind, layout = _result(
            Op(
                name,
                kinds,
                [_shape(each) for each in inputs],
                output.shape.rank,
                index,
                constant,
                named.get,
                sizes.of_replica,
                output.shape[0] if output.shape.rank else None,
                layouts,
                _shape(output),
                sizes.of_all,
                output.dtype.is_integer,
            )
        )
        if kind is not Kind.SAME:
            mark(output, kind)
            if _is_remembered(name, kind, inputs):
                setattr(output, _MADE, Made(name, inputs, index, named.get))
        if layout != ROW_MAJOR:
            setattr(output, _LAYOUT, layout)
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


def _shape(value: Any) -> list[int | None] | None:
    shape = value.shape if isinstance(value, tf.Tensor) else None
    return None if shape is None or shape.rank is None else list(shape.as_list())
