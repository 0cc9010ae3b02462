"""Collectives of one member of a group, for tensors of any shape, on top of `wire`'s vectors."""

from __future__ import annotations

import itertools

import tensorflow as tf

from strategies.collectives.fixed_order import reduce_in_order, sum_of_rows
from strategies.collectives.tf_runtime import wire
from strategies.collectives.tf_runtime.wire import CollectiveGroup
from strategies.collectives.transport import Shape, num_elements, shape_of
from strategies.control_plane.waits import RECEIVE

_MERGE_OPS = {"sum": "Add", "min": "Min", "max": "Max"}
_BROADCAST = "broadcast"


# TensorFlow's ring moves one tensor at 0.2 GB/s between two processes, and 8 to 16 concurrent ones at 0.6 GB/s in
# total; 64 concurrent ones are slower again.
_SLICE_BYTES = 4 * 2**20
_MAX_SLICES = 16
# Slices that start at other offsets are copied, since the kernels need aligned input.
_ALIGNED_BYTES = 64
# A ring all-reduce of V bytes takes 2 (n - 1) sequential messages of V / n bytes, 0.4 ms each however short. Gathering
# all values and adding them locally takes n - 1 messages of V bytes: (n - 2) V / n more than two of the ring's. Between
# two processes of one machine it was faster by 0.4 ms up to 140 kB, by 0.5 ms at 1 MB, and slower at 10 MB.
_MAX_GATHERED_BYTES = 2**20
_MAX_GATHERED_MORE_BYTES = 2**17


def num_slices(value: tf.Tensor) -> int:
    """Returns the number of concurrent ops of an all_reduce: 1 if the size is not known at tracing time."""
    num_elements = value.shape.num_elements()
    return 1 if num_elements is None else min(_MAX_SLICES, max(1, num_elements * value.dtype.size // _SLICE_BYTES))


def all_reduce(value: tf.Tensor, group: CollectiveGroup, ordinal: int, op: str, num_slices: int = 1) -> tf.Tensor:
    """All-reduces a value, `S` -> `S`, by ops number `ordinal` to `ordinal + num_slices - 1`."""
    if _gathers(value, group):
        return _from_everyone(value, group, ordinal, op)
    vector = tf.reshape(value, [-1])
    if num_slices == 1:
        reduced = wire.reduce(vector, group, ordinal, _MERGE_OPS[op])
    else:
        unit = _ALIGNED_BYTES // vector.dtype.size
        num_units = vector.shape[0] // unit
        bounds = [unit * (num_units * i // num_slices) for i in range(num_slices)] + [vector.shape[0]]
        sizes = [end - begin for begin, end in itertools.pairwise(bounds)]
        parts = tf.split(vector, sizes)
        sums = [wire.reduce(part, group, ordinal + i, _MERGE_OPS[op]) for i, part in enumerate(parts)]
        reduced = tf.concat(sums, axis=0)
    return tf.reshape(reduced, shape_of(value))


def _gathers(value: tf.Tensor, group: CollectiveGroup) -> bool:
    """Returns True if an all-gather with a local reduction is faster; the same on all members, as shapes are equal."""
    count = value.shape.num_elements()
    if count is None or not group.on_cpu:
        return False
    num_bytes = count * value.dtype.size
    more = num_bytes * (group.size - 2) // group.size
    return num_bytes <= _MAX_GATHERED_BYTES and more <= _MAX_GATHERED_MORE_BYTES


def _from_everyone(value: tf.Tensor, group: CollectiveGroup, ordinal: int, op: str) -> tf.Tensor:
    rows = wire.gather(wire.flatten(value), group, ordinal)
    values = tf.unstack(wire.restore(rows, [group.size, *shape_of(value)], value.dtype))
    return reduce_in_order(values, op)


def all_gather(value: tf.Tensor, group: CollectiveGroup, ordinal: int, dim: int, sizes: tf.Tensor | None) -> tf.Tensor:
    """All-gathers `[.., d, ..]` -> `[.., sum of sizes, ..]`; `sizes` is int32 `[n]`, None if all are `d`."""
    if sizes is None:
        return _join(wire.gather(wire.flatten(value), group, ordinal), value, dim, group.size)
    sent = _pad_dim(value, dim, tf.reduce_max(sizes))
    rows = wire.gather(wire.flatten(sent), group, ordinal)
    parts = [wire.restore(rows[i], shape_of(sent), value.dtype) for i in range(group.size)]
    return tf.concat([_slice_dim(part, dim, sizes[i]) for i, part in enumerate(parts)], dim)


def gather_size(value: tf.Tensor, group: CollectiveGroup, ordinal: int, dim: int) -> tf.Tensor:
    """Returns every member's size along `dim`, int32 `[n]`."""
    return wire.gather(tf.shape(value)[dim : dim + 1], group, ordinal)[:, 0]


def reduce_scatter(
    value: tf.Tensor, group: CollectiveGroup, ordinal: int, dim: int, sizes: tf.Tensor | None, position: int
) -> tf.Tensor:
    """Reduce-scatters `[.., sum of sizes, ..]` -> this member's part of the sum, `[.., sizes[position], ..]`."""
    # TensorFlow has no CPU kernel for reduce-scatter: all-to-all and a local sum move the same bytes.
    if sizes is None:
        parts = _split(value, dim, group.size)
    else:
        longest = tf.reduce_max(sizes)
        pieces = tf.split(value, sizes, dim, num=group.size)
        parts = tf.stack([_pad_dim(piece, dim, longest) for piece in pieces])
    rows = wire.exchange(tf.reshape(parts, [group.size, -1]), group, ordinal)
    total = tf.reshape(sum_of_rows(rows, group.size), shape_of(parts)[1:])
    return total if sizes is None else _slice_dim(total, dim, sizes[position])


def broadcast(value: tf.Tensor, group: CollectiveGroup, ordinal: int, is_root: bool) -> tf.Tensor:
    """Returns the root's value, `S` -> `S`."""
    if not is_root:
        return receive(shape_of(value), value.dtype, group, ordinal, _BROADCAST)
    with tf.control_dependencies([wire.send(wire.flatten(value), group, ordinal, _BROADCAST)]):
        return tf.identity(value)


def receive(
    shape: Shape | tf.Tensor, dtype: tf.DType, group: CollectiveGroup, ordinal: int, kind: str = RECEIVE
) -> tf.Tensor:
    """Receives a tensor of `shape` from the member that sends."""
    return wire.restore(wire.recv(num_elements(shape), dtype, group, ordinal, kind), shape, dtype)


def all_to_all(value: tf.Tensor, group: CollectiveGroup, ordinal: int, split_dim: int, concat_dim: int) -> tf.Tensor:
    """Runs an all-to-all, `[.., s, .., c, ..]` -> `[.., s / n, .., c * n, ..]`."""
    parts = _split(value, split_dim, group.size)
    rows = wire.exchange(wire.flatten_rows(parts), group, ordinal)
    return _join(rows, parts[0], concat_dim, group.size)


def _split(value: tf.Tensor, dim: int, num_parts: int) -> tf.Tensor:
    """Splits `dim`: `[.., n * d, ..]` -> `[n, .., d, ..]`."""
    if dim:
        return tf.stack(tf.split(value, num_parts, dim))
    first, *rest = shape_of(value)
    return tf.reshape(value, [num_parts, first // num_parts, *rest])


def _join(rows: tf.Tensor, part: tf.Tensor, dim: int, num_parts: int) -> tf.Tensor:
    """Joins rows along `dim`: `[n, k]`, each row a flattened value like `part` `[.., d, ..]` -> `[.., n * d, ..]`."""
    shape = shape_of(part)
    if not dim:
        return wire.restore(rows, [num_parts * shape[0], *shape[1:]], part.dtype)
    return tf.concat(tf.unstack(wire.restore(rows, [num_parts, *shape], part.dtype)), dim)


def _pad_dim(value: tf.Tensor, dim: int, size: tf.Tensor) -> tf.Tensor:
    paddings = [[0, 0]] * value.shape.rank
    paddings[dim] = [0, size - tf.shape(value)[dim]]
    return tf.pad(value, paddings)


def _slice_dim(value: tf.Tensor, dim: int, size: tf.Tensor) -> tf.Tensor:
    return value[(slice(None),) * dim + (slice(size),)]
