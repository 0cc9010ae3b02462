"""Makes the copies whose contract is tested here: the copies of `parallelize` and of `PipelineModel`."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from tests.keras_ext.tensor.harness import mesh_strategy
from tests.strategies.parity.harness import largest

L = keras.layers


def parallelized(model: Any, plan: Mapping[str, str] | None = None) -> Any:
    """Returns a copy with shards, where something can be split or a plan says so."""
    with mesh_strategy({"tensor": 2}).scope():
        return keras_ext.parallelize(model, plan)


def staged(model: Any, **arguments: Any) -> Any:
    with mesh_strategy({"pipe": 2}).scope():
        return keras_ext.PipelineModel(model, **dict[str, Any](partition="uniform") | arguments)


COPIES: Mapping[str, Callable[[Any], Any]] = {"parallelize": parallelized, "PipelineModel": staged}


each_copy = pytest.mark.parametrize("copied", COPIES.values(), ids=COPIES)


def assert_like(copy: Any, model: Any, x: Any, atol: float = 0) -> None:
    """Compares weights, bit for bit if nothing was trained in between, and outputs."""
    assert [weight.shape for weight in copy.get_weights()] == [weight.shape for weight in model.get_weights()]
    for mine, theirs in zip(copy.get_weights(), model.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, rtol=0, atol=atol)
    # Relative where values are above 1, as everywhere: one rounding of 18 in float32 is 1.9e-6.
    assert largest([np.asarray(model(x))], [np.asarray(copy(x))]) <= 1e-6
