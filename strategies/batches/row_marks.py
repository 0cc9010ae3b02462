"""Marks on the tensors of a running step: their kind, their layout, and the operation that made them.

Eager operations leave nothing to inspect, so inside :func:`marking` each tensor is marked when it is made. In a graph
a tensor is marked only if more is known about it than its operations show; `row_dependence` finds the rest.
"""

from __future__ import annotations

import contextlib
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import tensorflow as tf

from strategies._tf_internals import op_callbacks
from strategies.batches.row_context import Sizes, changing_rows, row_context
from strategies.batches.row_kinds import ROW_MAJOR, Kind, Layout, Op, ShardId, ShardPart
from strategies.batches.row_layouts import layout_of
from strategies.batches.row_origins import Made
from strategies.batches.row_rules import kind_of
from strategies.batches.row_shards import shard_part

#: The kind and the layout of a tensor.
Found = tuple[Kind, Layout]

_MARK = "_keras_strategies_row_kind"
_LAYOUT = "_keras_strategies_row_layout"
_SUMMED = "_keras_strategies_summed_over_rows"
_WHOLE = "_keras_strategies_of_whole_weights"
_REDUCED = "_keras_strategies_reduced"
_PARTS = "_keras_strategies_parts"
_MADE = "_keras_strategies_made"
# Eager operations that are remembered although their outputs have rows, or appear to: see `row_terms`.
_REMEMBERED = (
    "ScatterNd",
    "TensorScatterAdd",
    "Transpose",
    "UnsortedSegmentMax",
    "UnsortedSegmentMin",
    "UnsortedSegmentSum",
)
_REMEMBERED_OF_ALL = ("Bincount", "DenseBincount", "BatchMatMulV2", "MatMul")


def mark(value: Any, kind: Kind) -> Any:
    """Marks a tensor with its kind; returns it."""
    if isinstance(value, tf.Tensor):
        setattr(value, _MARK, kind)
    return value


def mark_summed(value: Any) -> Any:
    """Marks a tensor as a sum over the rows of all replicas, which is the same on all; returns it."""
    if isinstance(value, tf.Tensor):
        setattr(value, _SUMMED, True)
    return mark(value, Kind.SAME)


def mark_shard(value: Any, shard: ShardId, kind: Kind = Kind.SAME) -> Any:
    """Marks a tensor, or the handle of a variable, as the elements of a shard of a weight; returns it.

    Args:
        value: a tensor that has an item for each element, such as a gradient, or a resource tensor.
        shard: the shard, of a weight that the devices of a replica, or replicas, share.
        kind: its dependence on rows.
    """
    setattr(value, _LAYOUT, Layout(shards=ShardPart(frozenset([shard]))))
    return mark(value, kind)


def mark_whole(values: Sequence[Any]) -> None:
    """Marks outputs of a layer: it computes them from all shards of its weights, whichever ops it does that with."""
    for value in values:
        if isinstance(value, tf.Tensor):
            setattr(value, _WHOLE, True)
            setattr(value, _LAYOUT, marked_layout(value).with_shards(None))


def is_marked_whole(value: Any) -> bool:
    """Returns True if a tensor was marked as the output of a layer whose weights are in shards."""
    return hasattr(value, _WHOLE)


def mark_reduced(values: Any) -> Any:
    """Marks the tensors of a nest as results over all replicas, such as metrics; returns the nest."""
    for leaf in tf.nest.flatten(values):
        if isinstance(leaf, tf.Tensor):
            setattr(leaf, _REDUCED, True)
    return values


def is_reduced(value: Any) -> bool:
    """Returns True if a value was reduced over all replicas of all processes, and is the same on all."""
    return hasattr(value, _REDUCED)


def marked_kind(value: Any) -> Kind | None:
    """Returns the kind that a tensor was marked with, if it was."""
    kind: Kind | None = getattr(value, _MARK, None)
    return kind


def marked_layout(value: Any) -> Layout:
    """Returns the layout that a tensor was marked with; `ROW_MAJOR` if it was not."""
    layout: Layout = getattr(value, _LAYOUT, ROW_MAJOR)
    return layout


def is_marked_summed(value: Any) -> bool:
    """Returns True if a tensor was marked as a sum over the rows of all replicas."""
    return hasattr(value, _SUMMED)


def marked_operation(value: Any) -> Made | None:
    """Returns the operation that made an eager tensor, if it is remembered."""
    made: Made | None = getattr(value, _MADE, None)
    return made


def marked_parts(value: Any) -> list[tuple[Kind, Any]]:
    """Returns the kind and the size of each part that an eager vector was concatenated from, in order."""
    parts: list[tuple[Kind, Any]] | None = getattr(value, _PARTS, None)
    return [(getattr(value, _MARK, Kind.SAME), int(value.shape[0]))] if parts is None else parts


def is_marking() -> bool:
    """Returns True while this thread's eager tensors are marked; unmarked ones are then the same on all replicas."""
    return row_context().sizes is not None


def by_rules(op: Op) -> Found:
    """Returns the kind and the layout of an operation's output."""
    kind = kind_of(op)
    return kind, layout_of(op, kind).with_shards(shard_part(op, kind))


@contextlib.contextmanager
def marking(arguments: Any, sizes: Sizes) -> Iterator[None]:
    """Context manager: marks the arguments of a step, and the eager tensors that this thread makes in the block.

    In a graph the operations show the rest; only the arguments need marks, because the step does not include the split
    of the batch. It may be nested: micro-batches of a replica have other numbers of rows than the replica.

    Args:
        arguments: a nest of the step's arguments that have rows.
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
    with contextlib.nullcontext() if is_marking() else _callback(), changing_rows(sizes=sizes):
        yield


@contextlib.contextmanager
def _callback() -> Iterator[None]:
    """Context manager: an op callback of TensorFlow marks the outputs of each eager operation of this thread."""
    # The replicas' threads share one list of callbacks: each adds its own, which ignores the tensors of other threads.
    thread = threading.get_ident()

    def note(op_type: Any, inputs: Any, attrs: Any, outputs: Any, op_name: Any = None, graph: Any = None) -> None:
        sizes = row_context().sizes
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
    """Returns True for operations whose inputs are kept: those whose outputs have no rows, and few others."""
    if name in _REMEMBERED or not kind.has_rows:
        return True
    if name in _REMEMBERED_OF_ALL:
        return kind is not Kind.ROWS
    return all(hasattr(each, _MADE) or not hasattr(each, _MARK) for each in inputs)


def _shape(value: Any) -> list[int | None] | None:
    shape = value.shape if isinstance(value, tf.Tensor) else None
    return None if shape is None or shape.rank is None else list(shape.as_list())
