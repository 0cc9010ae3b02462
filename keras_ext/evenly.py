"""Division of a size into parts that differ by one at most."""

from __future__ import annotations

import itertools
from typing import Any

from keras import ops


def even_bounds(size: Any, count: int) -> list[Any]:
    """Returns the start of each of ``count`` parts of ``size``, and the end of the last; larger parts come first.

    Args:
        size: int, or an integer scalar if it is not known before the run; the bounds are of the same kind.
        count: number of parts.
    """
    smaller = min if isinstance(size, int) else ops.minimum
    return [i * (size // count) + smaller(i, size % count) for i in range(count + 1)]


def even_sizes_of(size: int, count: int) -> list[int]:
    """The sizes of these parts."""
    return [end - start for start, end in itertools.pairwise(even_bounds(size, count))]
