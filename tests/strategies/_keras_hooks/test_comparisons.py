"""``strategy.check(model, data)`` finds what differs from one device, names where, and leaves the model as it was."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from tests.strategies._keras_hooks import faulty
from tests.strategies._keras_hooks.faulty import X, Y, model_of

L: Any = keras.layers
TWO = ["CPU:0", "CPU:1"]

pytestmark = pytest.mark.filterwarnings("ignore::strategies.DifferenceWarning")


def pipeline(model: Any) -> Any:
    return keras_ext.PipelineModel(model, num_microbatches=2)


def made(strategy: Any, make: Callable[[], Any], place: Callable[[Any], Any] | None = None, **compiled: Any) -> Any:
    with strategy.scope():
        model = make() if place is None else place(make())
        model.compile(**{"optimizer": "adam", "loss": "mse", **compiled})
    return model


FAULTS: dict[str, tuple[Any, dict[str, Any], tuple[str, ...], str]] = {
    "a gradient is scaled": (
        functools.partial(faulty.ScalesGradient, name="scales"),
        {},
        ("first", "scales"),
        "the gradient of 'first/bias' differs by 5.0e-01",
    ),
    "a layer draws": (functools.partial(faulty.Draws, name="draws"), {}, ("draws",), "'draws' is the first layer"),
    "a metric is no sum": (
        None,
        {"metrics": [faulty.RootMeanSquare(name="root")]},
        ("root",),
        "The metric 'root' differs before the first update",
    ),
    "a loss averages": (None, {"loss": faulty.MeanOfLarge()}, ("compile(loss=MeanOfLarge)",), "and the loss differs"),
    "a layer's loss averages": (
        functools.partial(faulty.AddsMeanOfPositive, name="adds"),
        {},
        ("compile(loss=mse)", "adds"),
        "and the loss differs",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
@pytest.mark.parametrize("axis", ["data", pytest.param("pipe", marks=pytest.mark.parity_all)])
def test_deliberate_faults_are_named(axis: str, fault: str) -> None:
    inner, compiled, names, text = FAULTS[fault]
    if axis == "pipe" and "metrics" in compiled:
        pytest.skip("A pipeline of one replica reads metrics from whole batches.")
    strategy = strategies.MirroredStrategy(TWO, mesh={axis: 2})
    with strategy.scope():
        compiled = {
            key: [type(each)(name=each.name) for each in value] if key == "metrics" else value
            for key, value in compiled.items()
        }
    model = made(strategy, functools.partial(model_of, inner), pipeline if axis == "pipe" else None, **compiled)
    before = model.get_weights()
    found = strategy.check(model, (X, Y), steps=1)
    assert not found.ok
    assert found.suspects == names, found
    assert text in found.cause
    for weight, value in zip(model.get_weights(), before, strict=True):
        np.testing.assert_array_equal(weight, value)
