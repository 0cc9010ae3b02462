"""The plan of weights whose updates are sharded over devices: buckets, slices, and the owner of each slice."""

from __future__ import annotations

import itertools
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, NamedTuple

import tensorflow as tf

from strategies.buckets import Slice, SlicedBucket
from strategies.replica.weight_slices import WeightSlice, sliced


class PartitionedBucket(NamedTuple):
    """A bucket of weights of one part of a replica, and the number of that part's data-parallel group."""

    group: int
    bucket: SlicedBucket


class Partition:
    """Variables whose updates are sharded over the devices of the data axis.

    Args:
        variables: Keras variables, in the order in which they were created.
        buckets: the buckets with the variables' slices.
        slices: for each slice the variable that an optimizer gets.
    """

    def __init__(
        self, variables: Sequence[Any], buckets: Sequence[PartitionedBucket], slices: dict[Slice, WeightSlice]
    ) -> None:
        self.variables = tuple(variables)
        self.buckets = tuple(buckets)
        self._slices = slices
        ordered = sorted(slices, key=lambda each: (each.variable, each.begin))
        #: The slices of all owners, weight by weight.
        self.slices = tuple(slices[each] for each in ordered)
        #: For each slice, the position of its variable.
        self.positions = tuple(each.variable for each in ordered)
        for position, own in itertools.groupby(ordered, key=lambda each: each.variable):
            sliced(variables[position], [slices[each] for each in own])
        for each in self.slices:
            each.partition = self

    def part_of(self, bucket: SlicedBucket, owner: int) -> list[WeightSlice]:
        """Returns the slices of one owner in a bucket."""
        return [self._slices[each] for each in bucket.owner_slices(owner)]

    def slice_of(self, plan: Slice) -> WeightSlice:
        """Returns the variable for a slice."""
        return self._slices[plan]

    def slices_of(self, chosen: Sequence[bool]) -> list[WeightSlice]:
        """Returns the slices of some of the variables."""
        return [each for each, position in zip(self.slices, self.positions, strict=True) if chosen[position]]

    def unit_of(self, each: PartitionedBucket) -> Any:
        """Returns the unit in which the weights of a bucket are gathered; None if devices hold all of them."""
        return getattr(self.variables[each.bucket.slices[0].variable].value, "unit", None)

    def dtype_of(self, bucket: SlicedBucket) -> tf.DType:
        """Returns the dtype of all variables of a bucket."""
        return tf.as_dtype(self.variables[bucket.slices[0].variable].dtype)


def laid_out(
    bucket: SlicedBucket, owners: Sequence[int], values: Mapping[Slice, tf.Tensor], dtype: tf.DType
) -> tf.Tensor:
    """Returns the concatenation of the owners' flat parts of a bucket, each padded to the length of the longest.

    Args:
        bucket: the bucket.
        owners: the owners whose parts are returned.
        values: for each slice of these owners its value, of the slice's size.
        dtype: the dtype of the result.
    """
    parts = []
    for owner in owners:
        own = bucket.owner_slices(owner)
        parts += [tf.reshape(tf.cast(values[each], dtype), [-1]) for each in own]
        missing = bucket.part_size - sum(each.size for each in own)
        if missing:
            parts.append(tf.zeros([missing], dtype))
    return tf.concat(parts, 0)


def all_laid_out(bucket: SlicedBucket, values: Mapping[int, tf.Tensor], dtype: tf.DType) -> tf.Tensor:
    """Returns the parts of all owners as :func:`laid_out` does, from whole variables.

    Ranges that are adjacent both in a variable and in the result are one piece, so a bucket of one variable is not
    copied.

    Args:
        bucket: the bucket.
        values: by position, the values of whole variables; missing ones are zeros.
        dtype: the dtype of the result.
    """
    parts = []
    flat = {i: tf.reshape(tf.cast(value, dtype), [-1]) for i, value in values.items()}
    end = 0
    for i, found in itertools.groupby(bucket.offsets, key=lambda piece: piece[1].variable):
        for offset, size, begin in merged([(at, each.size, each.begin) for at, each in found]):
            if offset > end:
                parts.append(tf.zeros([offset - end], dtype))
            end = offset + size
            parts.append(flat[i][begin : begin + size] if i in flat else tf.zeros([size], dtype))
    total = bucket.num_owners * bucket.part_size
    if total > end:
        parts.append(tf.zeros([total - end], dtype))
    return tf.concat(parts, 0) if len(parts) > 1 else parts[0]


def taken_apart(bucket: SlicedBucket, flat: tf.Tensor) -> Iterator[tuple[int, list[tf.Tensor]]]:
    """Yields (position, flat pieces in order) for each variable of a bucket: the inverse of :func:`all_laid_out`.

    Args:
        bucket: the bucket.
        flat: the parts of all owners, concatenated as by :func:`laid_out`.
    """
    pieces = sorted(bucket.offsets, key=lambda piece: (piece[1].variable, piece[1].begin))
    for i, found in itertools.groupby(pieces, key=lambda piece: piece[1].variable):
        ranges = merged([(at, each.size, each.begin) for at, each in found])
        yield i, [flat[at : at + size] for at, size, _ in ranges]


def merged(ranges: Sequence[tuple[int, int, int]]) -> list[tuple[int, int, int]]:
    """Merges (offset, size, begin in the variable) ranges that are adjacent both by offset and by begin."""
    found: list[tuple[int, int, int]] = []
    for offset, size, begin in ranges:
        if found:
            last_offset, last_size, last_begin = found[-1]
            if (offset, begin) == (last_offset + last_size, last_begin + last_size):
                found[-1] = (last_offset, last_size + size, last_begin)
                continue
        found.append((offset, size, begin))
    return found
