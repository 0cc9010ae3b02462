"""Reads tensors whole, to compare them."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from strategies.converting import open_tensors
from strategies.replica.stored_array import StoredArray


def read(path: Path) -> dict[str, np.ndarray]:
    """Returns all tensors of a file or folder."""
    with open_tensors(path) as tensors:
        return {name: np.array(StoredArray(tensor)) for name, tensor in tensors.items()}


def same(found: Mapping[str, Any], expected: Mapping[str, np.ndarray]) -> None:
    """Asserts that tensors are equal, bit for bit, by name, with their dtypes and shapes."""
    assert found.keys() == expected.keys()
    for name, value in expected.items():
        assert (found[name].dtype, found[name].shape) == (value.dtype, value.shape), name
        np.testing.assert_array_equal(found[name], value)
