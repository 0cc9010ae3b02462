"""Slices of buckets, one for each member of a group that deals weights out among itself. Pure: standard library only.

Each bucket of gradients, laid out flat, is cut into as many parts of equal length as there are owners. So a weight in
the middle of a part has one owner, and one at a cut has several, each of a range of its elements. Weights of which
single elements cannot be updated by themselves are dealt out whole, balanced by their bytes.
"""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence
from dataclasses import dataclass

from strategies.collectives.buckets import make_buckets

#: Of an owner's part: a cut is moved to the beginning of a row (an index of the first dim) if it moves by no more.
_MAX_MOVE = 0.005


@dataclass(frozen=True)
class Slice:
    """A range of the elements of a variable, laid out flat, and its owner.

    Args:
        variable: its position in the list of variables.
        owner: a member of the group, from 0.
        begin: the first element.
        end: behind the last element; always behind the first.
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
    """Variables of one dtype whose gradients travel together, as parts of one length for all owners.

    Args:
        slices: in the order in which they travel: those of owner 0, then of owner 1; a part may be empty.
        num_owners: the size of the group.
    """

    slices: tuple[Slice, ...]
    num_owners: int

    @property
    def part_size(self) -> int:
        """The elements of the longest part, to which the others are padded on their way."""
        return max(sum(each.size for each in self.of_owner(owner)) for owner in range(self.num_owners))

    @property
    def places(self) -> list[tuple[int, Slice]]:
        """The slices, each behind the place of its first element where padded parts lie side by side."""
        found = []
        for owner in range(self.num_owners):
            place = owner * self.part_size
            for each in self.of_owner(owner):
                found.append((place, each))
                place += each.size
        return found

    def of_owner(self, owner: int) -> tuple[Slice, ...]:
        """The slices of one owner."""
        return tuple(each for each in self.slices if each.owner == owner)


def slice_buckets(
    shapes: Sequence[Sequence[int]],
    dtypes: Sequence[tuple[str, int]],
    num_owners: int,
    bucket_bytes: int,
    *,
    whole: bool = False,
) -> tuple[SlicedBucket, ...]:
    """Deals variables out among owners.

    Args:
        shapes: of the variables, in the order in which they were created.
        dtypes: name and bytes of an element, for each variable.
        num_owners: the size of the group.
        bucket_bytes: the most that gradients which travel together hold; see :func:`make_buckets`.
        whole: whether each variable has one owner, because its elements cannot be updated one by one.

    Returns:
        Buckets in which each element of each variable occurs once. Variables without elements are in none.

    Source: the partition of flat buckets is that of ZeRO (Rajbhandari et al., arXiv:1910.02054) as Megatron-LM's
    distributed optimizer has it.
    """
    sizes = [math.prod(shape) for shape in shapes]
    if whole:
        return _dealt_whole(sizes, dtypes, num_owners)
    num_bytes = [size * width for size, (_, width) in zip(sizes, dtypes, strict=True)]
    buckets = make_buckets(num_bytes, [name for name, _ in dtypes], bucket_bytes)
    made = [_cut([(i, sizes[i], tuple(shapes[i])) for i in bucket.indices], num_owners) for bucket in buckets]
    return tuple(SlicedBucket(slices, num_owners) for slices in made if slices)


def _cut(variables: Sequence[tuple[int, int, tuple[int, ...]]], num_owners: int) -> tuple[Slice, ...]:
    """Cuts variables that lie side by side, each an index, a size and a shape, into parts of equal length."""
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


def _dealt_whole(sizes: Sequence[int], dtypes: Sequence[tuple[str, int]], num_owners: int) -> tuple[SlicedBucket, ...]:
    """The largest first, each to the owner that has least. One bucket per dtype: parts of small ones would differ."""
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
