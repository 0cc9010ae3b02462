"""Lists of tensors for people, and other names for tensors.

tests/keras_ext/checkpoints/test_load_weights.py tests both.
"""

from __future__ import annotations

import math
import re
from collections.abc import Mapping
from typing import Any

import numpy as np

from strategies.replica.stored_array import StoredArray, ranges


def renamed(tensors: Mapping[str, Any], names: Mapping[str, str]) -> dict[str, Any]:
    """Returns tensors by other names.

    Raises:
        ValueError: tensors have no new name, or names no tensor, or two tensors one name; all of them are named.
    """
    lines = [f"no name for: {name}" for name in tensors if name not in names]
    lines += [f"no tensor: {name}" for name in names if name not in tensors]
    new = list(names.values())
    lines += [f"named twice: {name}" for name in dict.fromkeys(new) if new.count(name) > 1]
    if lines:
        raise ValueError("The names do not fit the tensors. Received:\n" + "\n".join(sorted(lines)))
    return {names[name]: tensor for name, tensor in tensors.items()}


def listed(tensors: Mapping[str, Any]) -> str:
    """Returns a line for each tensor: name, dtype, shape, and the sum of its elements."""
    rows = [
        (name, tensor.dtype.name, "x".join(map(str, tensor.shape)) or "scalar", f"{_sum(tensor):.9g}")
        for name, tensor in sorted(tensors.items(), key=_in_order)
    ]
    widths = [max((len(row[i]) for row in rows), default=0) for i in range(3)]
    lines = [
        "  ".join([*(each.ljust(width) for each, width in zip(row, widths, strict=False)), row[3]]) for row in rows
    ]
    return "\n".join([*lines, f"{len(rows)} tensors, {num_bytes(tensors):,} bytes"])


def _in_order(item: tuple[str, Any]) -> list[tuple[int, str]]:
    """Orders names such that numbers in them are in the order of numbers."""
    return [(int(part), "") if part.isdigit() else (-1, part) for part in re.split(r"(\d+)", item[0])]


def _sum(tensor: Any) -> float:
    array, total = StoredArray(tensor), 0.0
    for begin, end in ranges(math.prod(tensor.shape), tensor.dtype.itemsize):
        total += float(np.sum(array.flat(begin, end).astype(np.float64)))
    return total


def num_bytes(tensors: Mapping[str, Any]) -> int:
    """Returns the number of bytes of all tensors."""
    return sum(math.prod(tensor.shape) * tensor.dtype.itemsize for tensor in tensors.values())
