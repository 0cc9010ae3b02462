"""The partition of weights, in flat buckets, among the members of a sharding group. Pure: standard library only.

Each flat bucket of gradients is cut into one part per owner, of nearly equal length. A weight inside a part has one
owner; a weight across a cut has several, each of which owns a range of its elements. Weights whose elements cannot be
updated independently are assigned whole, balanced by their bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from strategies.buckets.buckets import make_buckets

#: A cut is moved to the nearest start of a row (an index of the first dim), by at most this fraction of a part.
_MAX_MOVE = 0.005


@dataclass(frozen=True)
class Slice:
    """A range of the elements of a flattened variable, and its owner.

    Args:
        variable: its position in the list of variables.
        owner: a member of the group, from 0.
        begin: the first element.
        end: one past the last element; greater than `begin`.
    """

    variable: int
    owner: int
    begin: int
    end: int

    @property
    def size(self) -> int:
        """The number of elements."""
        return self.end - self.begin


@dataclass(frozen=True)
class SlicedBucket:
    """Variables of one dtype whose gradients are communicated together, as parts of one length for all owners.

    Args:
        slices: the slices in the order of communication: those of owner 0, then of owner 1; a part may be empty.
        num_owners: the size of the group.
    """

    slices: tuple[Slice, ...]
    num_owners: int

    @property
    def part_size(self) -> int:
        """The number of elements of the longest part; the others are padded to it for communication."""
        return max(sum(each.size for each in self.owner_slices(owner)) for owner in range(self.num_owners))

    @property
    def offsets(self) -> list[tuple[int, Slice]]:
        """(offset, slice) pairs; offsets are into the concatenation of the padded parts."""
        found = []
        for owner in range(self.num_owners):
            offset = owner * self.part_size
            for each in self.owner_slices(owner):
                found.append((offset, each))
                offset += each.size
        return found

    def owner_slices(self, owner: int) -> tuple[Slice, ...]:
        """Returns the slices of one owner."""
        return tuple(each for each in self.slices if each.owner == owner)


def slice_buckets(
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[tuple[str, int]],
    num_owners: int,
    bucket_bytes: int,
    *,
    whole: bool = False,
) -> tuple[SlicedBucket, ...]:
    """Partitions variables among owners.

    Args:
        shapes: the shapes of the variables, in creation order.
        dtypes: for each variable, the name of its dtype and the bytes of an element.
        num_owners: the size of the group.
        bucket_bytes: the maximum size of a bucket, unless `whole`; see :func:`make_buckets`.
        whole: whether each variable has one owner, because its elements cannot be updated independently.

    Returns:
        Buckets in which each element of each variable occurs once. Variables without elements are in none.

    Source: the partition of flat buckets is that of ZeRO (Rajbhandari et al., arXiv:1910.02054), in the form of
    Megatron-LM's distributed optimizer.
    """
    sizes = [math.prod(shape) for shape in shapes]
    if whole:
        return _assign_whole(sizes, dtypes, num_owners)
    num_bytes = [size * width for size, (_, width) in zip(sizes, dtypes, strict=True)]
    buckets = make_buckets(num_bytes, [name for name, _ in dtypes], bucket_bytes)
    made = [_cut([(i, sizes[i], tuple(shapes[i])) for i in bucket.indices], num_owners) for bucket in buckets]
    return tuple(SlicedBucket(slices, num_owners) for slices in made if slices)


def _cut(variables: Sequence[tuple[int, int, tuple[int, ...]]], num_owners: int) -> tuple[Slice, ...]:
    """Cuts concatenated variables, each an (index, size, shape), into one part of nearly equal length per owner."""
    total = sum(size for _, size, _ in variables)
    starts = [0, *itertools.accumulate(size for _, size, _ in variables)]
    cuts = [0]
    for owner in range(1, num_owners):
        ideal = total * owner // num_owners
        at = next(k for k, start in enumerate(starts[1:]) if ideal < start or k == len(variables) - 1)
        _, size, shape = variables[at]
        row = math.prod(shape[1:]) if len(shape) > 1 else 1
        nearest = starts[at] + min(size, round((ideal - starts[at]) / row) * row)
        cut = nearest if abs(nearest - ideal) <= _MAX_MOVE * total / num_owners else ideal
        cuts.append(max(cuts[-1], cut))
    cuts.append(total)
    slices = []
    for owner, (low, high) in enumerate(itertools.pairwise(cuts)):
        for (index, size, _), start in zip(variables, starts, strict=False):
            begin, end = max(low - start, 0), min(high - start, size)
            if begin < end:
                slices.append(Slice(index, owner, begin, end))
    return tuple(slices)


def _assign_whole(sizes: Sequence[int], dtypes: Sequence[tuple[str, int]], num_owners: int) -> tuple[SlicedBucket, ...]:
    """Assigns whole variables, the largest first, each to the owner with the fewest bytes.

    There is one bucket per dtype: the parts of smaller buckets would differ more in length.
    """
    loads = [0] * num_owners
    slices: dict[str, list[Slice]] = {}
    order = sorted(range(len(sizes)), key=lambda i: (-sizes[i] * dtypes[i][1], i))
    for index in order:
        if not sizes[index]:
            continue
        name, width = dtypes[index]
        owner = min(range(num_owners), key=lambda k: (loads[k], k))
        loads[owner] += sizes[index] * width
        slices.setdefault(name, []).append(Slice(index, owner, 0, sizes[index]))
    return tuple(
        SlicedBucket(tuple(sorted(own, key=lambda each: (each.owner, each.variable))), num_owners)
        for own in slices.values()
    )
