"""Splits large arrays into ranges of their flattened elements, and ranges into boxes of the array. Pure functions."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence

#: The bytes held at a time: enough to make latency negligible, few compared with a weight that is worth splitting.
SLICE_BYTES = 4 * 2**20

Box = tuple[slice, ...]


def ranges(count: int, item_bytes: int) -> Iterator[tuple[int, int]]:
    """Splits `count` items into ranges of at most `SLICE_BYTES`, equal in size where that leaves them large enough."""
    step = max(1, SLICE_BYTES // item_bytes)
    least = -(-count // step)
    step = next((count // number for number in range(max(1, least), 4 * least) if count % number == 0), step)
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)


def boxes(shape: Sequence[int], begin: int, end: int) -> Iterator[Box]:
    """Splits the flattened elements `begin` to `end` of an array into boxes of the array, in order.

    Example: in an array of two rows of three, the elements 1 to 6 are the box [0:1, 1:3], then [1:2, 0:3].
    """
    if not shape:
        yield ()
        return
    row = math.prod(shape[1:])
    while begin < end:
        index, offset = divmod(begin, row)
        last = end // row
        if offset == 0 and index < last:
            yield (slice(index, last), *(slice(0, size) for size in shape[1:]))
            begin = last * row
        else:
            stop = min(end, (index + 1) * row)
            for rest in boxes(shape[1:], offset, offset + stop - begin):
                yield (slice(index, index + 1), *rest)
            begin = stop
