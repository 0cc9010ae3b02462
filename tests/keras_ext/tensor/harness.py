"""Compares a model with split layers on a mesh with the plain model on one device."""

from __future__ import annotations

import functools
from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np

import strategies
from tests.strategies.parity.harness import TOLERANCE, Case, Outcome, compare, execute, fit_arrays

#: The meshes on which every layer is tested.
MESHES: Mapping[str, Mapping[str, int]] = {
    "tensor=2": {"tensor": 2},
    "tensor=4": {"tensor": 4},
    "data=2,tensor=2": {"data": 2, "tensor": 2},
    "tensor=2,data=2": {"tensor": 2, "data": 2},
}

#: Makes and compiles the model: split if True, else plain.
Make = Callable[[bool], Any]


_plain: dict[Any, Outcome] = {}


def mesh_strategy(axes: Mapping[str, int]) -> strategies.MirroredStrategy:
    """Returns a strategy over the first logical CPU devices."""
    count = int(np.prod(list(axes.values())))
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(count)], mesh=axes)


def assert_parity(
    make: Make,
    x: Any,
    y: Any,
    axes: Mapping[str, int],
    *,
    dtype_policy: str = "float32",
    tolerance: float = TOLERANCE,
    predict: bool = False,
    **fit: Any,
) -> None:
    """Trains the split model on the mesh and the plain one on one device, for three epochs, and compares them.

    It compares weights, optimizer slots, and logs of epochs and batches; with `predict`, also the logs of `evaluate`
    and the output of `predict`. Batches have 14 rows, the last one fewer.
    """
    run = fit_arrays(x, y, epochs=3, predict=predict, **fit)

    def outcome(split: bool) -> Outcome:
        case = Case("", functools.partial(make, split), run, dtype_policy)
        return execute(case, mesh_strategy(axes) if split else None)

    # A test's result on one device is the same for every mesh, so it is computed once.
    data = [np.asarray(each).tobytes() for each in keras.tree.flatten([x, y])]
    key = (make, *data, dtype_policy, predict)
    plain = None if fit else _plain.get(key)
    if plain is None:
        plain = outcome(False)
        if not fit and "<locals>" not in getattr(make, "__qualname__", "<locals>"):
            _plain[key] = plain
    found = compare(plain, outcome(True))
    assert found.largest <= tolerance, found
