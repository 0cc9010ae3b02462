"""Collectives of one member of a group, built from four of Horovod's operations.

Horovod orders the members of a process set by rank, a mesh axis by position: `Group` translates.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Sequence
from typing import TypeVar

import tensorflow as tf

from strategies.collectives.fixed_order import sum_of_rows
from strategies.collectives.transport import Pairs, num_elements, shape_of

_T = TypeVar("_T")


class Group(abc.ABC):
    """The members of one group, as seen by one of them.

    Args:
        ranks: the members' ranks, in the order of the axis.
        position: this member's position on the axis.
    """

    def __init__(self, ranks: tuple[int, ...], position: int) -> None:
        self.ranks = ranks
        self.size = len(ranks)
        self.position = position
        self._by_rank = sorted(range(self.size), key=ranks.__getitem__)
        self.in_rank_order = self._by_rank == list(range(self.size))

    def by_rank(self, items: Sequence[_T]) -> list[_T]:
        """Returns items given by position, in the order of ranks."""
        return [items[position] for position in self._by_rank]

    def by_position(self, items: Sequence[_T]) -> list[_T]:
        """Inverts `by_rank`."""
        return [items[self._by_rank.index(position)] for position in range(self.size)]

    @abc.abstractmethod
    def take(self, count: int = 1) -> int:
        """Returns the first of `count` new ordinals, which identify the ops of this group, in the order of tracing."""

    @abc.abstractmethod
    def reduce(self, values: Sequence[tf.Tensor], op: str) -> list[tf.Tensor]:
        """Returns the sum, min, max or adasum of each value; all of one dtype, the first with one dimension or more."""

    @abc.abstractmethod
    def gather(self, rows: tf.Tensor) -> tf.Tensor:
        """Returns all members' rows in the order of ranks; their numbers may differ."""

    @abc.abstractmethod
    def exchange(
        self,
        rows: tf.Tensor,
        splits: Sequence[int | tf.Tensor] | None = None,
        ordinal: int | None = None,
        kind: str = "",
    ) -> tf.Tensor:
        """Sends ``splits[i]`` rows to the i-th rank, equal parts if None; returns the received rows in rank order.

        Args:
            rows: the rows for all ranks, concatenated.
            splits: the number of rows for each rank.
            ordinal: identifies the operation; None for the next one.
            kind: the name of the operation in messages; Horovod's if empty.
        """

    @abc.abstractmethod
    def broadcast(self, vector: tf.Tensor, root: int) -> tf.Tensor:
        """Returns the vector of the member at position `root`."""


def to_bits(value: tf.Tensor) -> tf.Tensor:
    """Returns the same bits in a dtype that Horovod can send, as it can all that we allow except bfloat16."""
    return tf.bitcast(value, tf.uint16) if value.dtype == tf.bfloat16 else value


def from_bits(value: tf.Tensor, dtype: tf.DType) -> tf.Tensor:
    """Inverts `to_bits`."""
    return tf.bitcast(value, tf.bfloat16) if dtype == tf.bfloat16 else value


def sum_dtype(dtype: tf.DType) -> tf.DType:
    """Returns the dtype for sums: float32 for 16-bit floats.

    Horovod cannot add bfloat16. It adds float16 in software: 10 MB of float32 sent as float16 took four times as
    long over Gloo and loopback as sent unchanged.
    """
    return tf.float32 if dtype in (tf.float16, tf.bfloat16) else dtype


def all_reduce(value: tf.Tensor, group: Group, op: str) -> tf.Tensor:
    """All-reduces a value, `S` -> `S`."""
    [total] = group.reduce([tf.reshape(tf.cast(value, sum_dtype(value.dtype)), [-1])], op)
    return tf.cast(tf.reshape(total, shape_of(value)), value.dtype)


def all_reduce_many(values: Sequence[tf.Tensor], group: Group, op: str, dtype: tf.DType | None) -> list[tf.Tensor]:
    """Returns the sums, averages or adasums. Wider floats are sent as the 16-bit `dtype`, if given."""
    buckets: dict[tf.DType, list[int]] = {}
    for i, value in enumerate(values):
        compressed = dtype is not None and value.dtype.is_floating and value.dtype.size > 2
        buckets.setdefault(dtype if compressed else sum_dtype(value.dtype), []).append(i)
    results = list(values)
    for sent_as, indices in buckets.items():
        bucket = [values[i] for i in indices]
        reduce = _compressed if sent_as == dtype else _grouped
        for i, result in zip(indices, reduce(bucket, group, op, sent_as), strict=True):
            results[i] = result
    return results


def _grouped(values: Sequence[tf.Tensor], group: Group, op: str, dtype: tf.DType) -> list[tf.Tensor]:
    first, *others = [tf.cast(value, dtype) for value in values]
    # The first is sent as a vector: a scalar has no dimension for the fence to slice.
    totals = group.reduce([tf.reshape(first, [-1]), *others], "adasum" if op == "adasum" else "sum")
    if op == "average":
        totals = [total / tf.cast(group.size, dtype) for total in totals]
    totals[0] = tf.reshape(totals[0], shape_of(values[0]))
    return [tf.cast(total, value.dtype) for total, value in zip(totals, values, strict=True)]


def _compressed(values: Sequence[tf.Tensor], group: Group, op: str, dtype: tf.DType) -> list[tf.Tensor]:
    # Reduce-scatter, then all-gather: this sends as many bytes as a ring, and sums in float32.
    vector = tf.concat([tf.reshape(tf.cast(value, dtype), [-1]) for value in values], axis=0)
    count = num_elements(shape_of(vector))
    splits = [(count + group.size - 1 - part) // group.size for part in range(group.size)]
    parts = from_bits(group.exchange(to_bits(vector), splits), dtype)
    total = tf.reduce_sum(tf.cast(tf.reshape(parts, [group.size, -1]), tf.float32), axis=0)
    mine = tf.cast(total / group.size if op == "average" else total, dtype)
    reduced = from_bits(group.gather(to_bits(mine)), dtype)
    shapes = [shape_of(value) for value in values]
    ends = list(itertools.accumulate(num_elements(shape) for shape in shapes))
    return [
        tf.cast(tf.reshape(reduced[first:end], shape), value.dtype)
        for first, end, shape, value in zip([0, *ends[:-1]], ends, shapes, values, strict=True)
    ]


def all_gather(value: tf.Tensor, group: Group, dim: int, sizes: tf.Tensor | None) -> tf.Tensor:
    """All-gathers `[.., d, ..]` -> `[.., sum of sizes, ..]`; `sizes` is int32 `[n]`, None if all are `d`."""
    order = [dim, *range(dim), *range(dim + 1, value.shape.rank)]
    rows = tf.transpose(value, order) if dim else value
    gathered = from_bits(group.gather(to_bits(rows)), value.dtype)
    if not group.in_rank_order:
        lengths = group.size if sizes is None else tf.stack(group.by_rank(tf.unstack(sizes)))
        gathered = tf.concat(group.by_position(tf.split(gathered, lengths, num=group.size)), axis=0)
    result = tf.transpose(gathered, [order.index(i) for i in range(len(order))]) if dim else gathered
    shape = value.shape.as_list()
    shape[dim] = None if sizes is not None or shape[dim] is None else shape[dim] * group.size
    result.set_shape(shape)
    return result


def gather_size(value: tf.Tensor, group: Group, dim: int) -> tf.Tensor:
    """Returns every member's size along `dim`, int32 `[n]`."""
    sizes = group.gather(tf.shape(value)[dim : dim + 1])
    sizes.set_shape([group.size])
    return sizes if group.in_rank_order else tf.stack(group.by_position(tf.unstack(sizes)))


def reduce_scatter(value: tf.Tensor, group: Group, dim: int, sizes: tf.Tensor | None) -> tf.Tensor:
    """Reduce-scatters `[.., sum of sizes, ..]` -> this member's part of the sum, `[.., sizes[position], ..]`."""
    # Horovod's own has other part sizes, no bfloat16, and takes four times as long over Gloo and loopback.
    pieces = tf.split(value, group.size if sizes is None else sizes, dim, num=group.size)
    shapes = [shape_of(piece) for piece in pieces]
    if dim == 0 and group.in_rank_order:
        vector = tf.reshape(value, [-1])
    else:
        vector = tf.concat([tf.reshape(piece, [-1]) for piece in group.by_rank(pieces)], axis=0)
    received = group.exchange(to_bits(vector), group.by_rank([num_elements(shape) for shape in shapes]))
    parts = tf.reshape(from_bits(received, value.dtype), [group.size, *shapes[group.position]])
    return tf.cast(sum_of_rows(tf.cast(parts, sum_dtype(value.dtype)), group.size), value.dtype)


def broadcast(value: tf.Tensor, group: Group, root: int) -> tf.Tensor:
    """Returns the root's value, `S` -> `S`."""
    vector = group.broadcast(to_bits(tf.reshape(value, [-1])), root)
    return tf.reshape(from_bits(vector, value.dtype), shape_of(value))


def all_to_all(value: tf.Tensor, group: Group, split_dim: int, concat_dim: int) -> tf.Tensor:
    """Runs an all-to-all, `[.., s, .., c, ..]` -> `[.., s / n, .., c * n, ..]`."""
    parts = tf.stack(group.by_rank(tf.split(value, group.size, split_dim)))
    received = from_bits(group.exchange(to_bits(parts)), value.dtype)
    received.set_shape(parts.shape)
    return tf.concat(group.by_position(tf.unstack(received, num=group.size)), concat_dim)


def permute(value: tf.Tensor, group: Group, pairs: Pairs) -> tf.Tensor:
    """Sends along `pairs`, `S` -> `S`; a position that receives nothing gets zeros."""
    target = dict(pairs).get(group.position)
    vector = tf.reshape(value, [-1])
    count = num_elements(shape_of(vector))
    splits = [count if position == target else 0 for position in range(group.size)]
    received = group.exchange(to_bits(vector), group.by_rank(splits))
    if group.position not in (to for _, to in pairs):
        return tf.zeros_like(value)
    return tf.reshape(from_bits(received, value.dtype), shape_of(value))
