"""The states of models that tests of checkpoints compare, and a disk that is full."""

from __future__ import annotations

import errno
from typing import Any

import numpy as np

from strategies import layer_api


def values(model: Any) -> list[np.ndarray]:
    """Returns all weights and slots, whole; all processes call it. An optimizer that is not built is built first."""
    layer_api.state_of(model)
    return layer_api.values_of(model, [*layer_api.joined(model.weights), *layer_api.joined(model.optimizer.variables)])


def same(one: list[np.ndarray], other: list[np.ndarray]) -> None:
    """Asserts that two states are equal, bit for bit."""
    for mine, theirs in zip(one, other, strict=True):
        np.testing.assert_array_equal(mine, theirs)


def full(*args: Any) -> Any:
    """Replaces the function that writes a file."""
    raise OSError(errno.ENOSPC, "No space left on device")
