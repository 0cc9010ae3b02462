"""Layers that look at several rows are warned of in a pipeline of several micro-batches, also with one replica."""

from __future__ import annotations

import functools
import warnings
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from tests.keras_ext.tensor.harness import mesh_strategy

L = keras.layers
ROWS = np.random.default_rng(0).normal(size=(8, 5, 6)).astype("float32")


class Centered(keras.Layer):
    """Subtracts the mean over rows."""

    def call(self, x: Any) -> Any:
        return x - keras.ops.mean(x, axis=0, keepdims=True)


def mixture(**arguments: Any) -> Any:
    return keras_ext.MixtureOfExperts(4, 3, **dict[str, Any](load_balancing_loss=0.0) | arguments)


#: Makes the layer, and the beginnings of the warnings of `fit` and of `evaluate`.
LAYERS: dict[str, tuple[Callable[[], Any], list[str], list[str]]] = {
    "other rows": (Centered, ["What stage 0 of a pipeline computes"], ["What stage 0 of a pipeline computes"]),
    "balance": (lambda: mixture(load_balancing_loss=0.1), ["A loss that a layer adds is neither"], []),
    "capacity": (lambda: mixture(capacity_factor=0.75), ["The pipeline 'staged' with"], []),
    "bias": (lambda: mixture(router_bias=0.05), ["The pipeline 'staged' with"], []),
    "rows by themselves": (mixture, [], []),
}


def made(layer: Any, mesh: dict[str, int], num_microbatches: int, *, run_eagerly: bool = False) -> Any:
    with mesh_strategy(mesh).scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential([keras.Input((5, 6)), layer(), L.Dense(6), L.Dense(2)])
        pipeline = keras_ext.PipelineModel(
            model, num_microbatches=num_microbatches, partition=[model.layers[1].name], name="staged"
        )
        pipeline.compile("sgd", "mse", run_eagerly=run_eagerly)
    return pipeline


def warned(function: Callable[[], Any]) -> list[str]:
    """Returns the texts of the warnings of differences, each once."""
    with warnings.catch_warnings(record=True) as found:
        warnings.simplefilter("error")
        warnings.simplefilter("always", strategies.DifferenceWarning)
        function()
    return list(dict.fromkeys(str(each.message) for each in found))


@pytest.mark.parametrize("kind", LAYERS)
def test_one_replica(kind: str) -> None:
    layer, of_fit, of_evaluate = LAYERS[kind]
    model = made(layer, {"pipe": 2}, 2)
    for expected, found in (
        (of_fit, warned(lambda: model.fit(ROWS, ROWS[..., :2], batch_size=8, verbose=0))),
        (of_evaluate, warned(lambda: model.evaluate(ROWS, ROWS[..., :2], batch_size=8, verbose=0))),
        (of_evaluate, warned(lambda: model.predict(ROWS, batch_size=8, verbose=0))),
    ):
        assert len(found) == len(expected), found
        for text, begin in zip(found, expected, strict=True):
            assert text.startswith(begin)
            assert "Use num_microbatches=1" in text
    assert len(model.distribute_strategy.check(model)) == len(of_fit)


def test_several_replicas_and_eagerly() -> None:
    for layer, begin in ((Centered, "What stage 0"), (LAYERS["balance"][0], "A loss that a layer adds")):
        model = made(layer, {"data": 2, "pipe": 2}, 2, run_eagerly=True)
        [text] = warned(functools.partial(model.train_on_batch, ROWS, ROWS[..., :2]))
        assert text.startswith(begin)


def test_all_rows_in_one_micro_batch() -> None:
    """Nothing differs then, and nothing is warned of."""
    for layer in (Centered, lambda: mixture(load_balancing_loss=0.1, router_bias=0.05, capacity_factor=0.75)):
        model = made(layer, {"pipe": 2}, 1)
        assert warned(functools.partial(model.fit, ROWS, ROWS[..., :2], batch_size=8, verbose=0)) == []
        assert model.distribute_strategy.check(model) == ()
