"""Marks on the tensors of a running step: of what kind they are, where their rows lie, and what made them.

Eager operations leave nothing to inspect, so inside of :func:`marking` each tensor is marked when it is made. In a
graph only those are marked of which somebody knows more than the operations show; `row_dependence` finds the rest.
"""

from __future__ import annotations

import contextlib
import contextvars
import threading
from collections.abc import Collection, Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import tensorflow as tf

from strategies._tf_internals import op_callbacks
from strategies.batches.row_kinds import ROW_MAJOR, Kind, Layout, Op
from strategies.batches.row_layouts import layout_of
from strategies.batches.row_origins import Made
from strategies.batches.row_rules import kind_of

#: The kind of a tensor, and the place of the rows in it.
Found = tuple[Kind, Layout]

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


def marked_kind(value: Any) -> Kind | None:
    """Returns the kind that a tensor was marked with, if it was."""
    kind: Kind | None = getattr(value, _MARK, None)
    return kind


def marked_layout(value: Any) -> Layout:
    """Returns the place of rows that a tensor was marked with; along the first dimension if it was not."""
    layout: Layout = getattr(value, _LAYOUT, ROW_MAJOR)
    return layout


def is_marked_summed(value: Any) -> bool:
    """True if a tensor was marked as a sum over the rows of all replicas."""
    return hasattr(value, _SUMMED)


def marked_operation(value: Any) -> Made | None:
    """Returns the operation that made a tensor outside of graphs, if it is remembered."""
    made: Made | None = getattr(value, _MADE, None)
    return made


def marked_parts(value: Any) -> list[tuple[Kind, Any]]:
    """Returns of what a vector was joined outside of graphs: for each part its kind and its size, in order."""
    parts: list[tuple[Kind, Any]] | None = getattr(value, _PARTS, None)
    return [(getattr(value, _MARK, Kind.SAME), int(value.shape[0]))] if parts is None else parts


def is_marking() -> bool:
    """True where tensors that are made outside of graphs are marked: one without a mark is the same on all replicas."""
    return _marking.get() is not None


def by_rules(op: Op) -> Found:
    """Returns the kind of what an operation makes, and the place of rows in it."""
    kind = kind_of(op)
    return kind, layout_of(op, kind)


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
        kind, layout = by_rules(
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
            setattr(output, _PARTS, [part for each in inputs[:-1] for part in marked_parts(each)])
        elif name in ("Reshape", "Identity", "Cast") and hasattr(inputs[0], _PARTS) and output.shape.rank == 1:
            setattr(output, _PARTS, getattr(inputs[0], _PARTS))


def _is_remembered(name: str, kind: Kind, inputs: Sequence[Any]) -> bool:
    """True of operations whose inputs are kept: of what has no rows, which is small, and of few others."""
    if name in _REMEMBERED or not kind.has_rows:
        return True
    if name in _REMEMBERED_OF_ALL:
        return kind is not Kind.ROWS
    return all(hasattr(each, _MADE) or not hasattr(each, _MARK) for each in inputs)


def _shape(value: Any) -> list[int | None] | None:
    shape = value.shape if isinstance(value, tf.Tensor) else None
    return None if shape is None or shape.rank is None else list(shape.as_list())
