"""Division of a size into parts that differ by at most one, larger parts first. Standard library only."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any


def even_bounds(size: Any, count: int, minimum: Callable[[Any, Any], Any] = min) -> list[Any]:
    """Returns the start of each of ``count`` parts of ``size``, and the end of the last.

    Part i has ``size // count`` items, and one more if ``i < size % count``.

    Args:
        size: int, or an integer scalar tensor if it is known at run time only; the bounds have the same type.
        count: number of parts.
        minimum: a function that returns the smaller of an int and such a scalar, from the scalar's library.
    """
    smaller = min if isinstance(size, int) else minimum
    quotient, remainder = size // count, size % count
    return [i * quotient + smaller(i, remainder) for i in range(count + 1)]


def even_sizes(size: int, count: int) -> list[int]:
    """Returns the sizes of the parts of :func:`even_bounds`."""
    return [end - start for start, end in itertools.pairwise(even_bounds(size, count))]
