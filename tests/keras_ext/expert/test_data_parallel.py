"""MixtureOfExperts under MirroredStrategy: weights, slots and logs of one device, also of plain Keras' dense sum."""

from __future__ import annotations

import contextlib
import warnings
from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from tests.keras_ext.expert.dense import DenseMixture

EXPERTS, HIDDEN, FEATURES, LENGTH = 4, 10, 6, 3
CASES: dict[str, dict[str, Any]] = {
    "losses": {"load_balancing_loss": 0.5, "z_loss": 0.05},
    "bias": {"load_balancing_loss": 0.0, "router_bias": 0.05},
    "capacity": {"load_balancing_loss": 0.1, "capacity_factor": 0.75},
}


def dense(**arguments: Any) -> Any:
    return DenseMixture(
        EXPERTS,
        HIDDEN,
        2,
        arguments["load_balancing_loss"],
        arguments.get("z_loss", 0.0),
        arguments.get("router_bias", 0.0),
        arguments.get("capacity_factor"),
    )


def sparse(**arguments: Any) -> Any:
    return keras_ext.MixtureOfExperts(EXPERTS, HIDDEN, 2, **arguments)


def trained(mixture: Any, strategy: Any = None, weights: Any = None, **optimizer: Any) -> tuple[Any, list[Any], Any]:
    """Returns model, initial weights and logs; batches of 8, 8 and 1 rows: the last leaves replicas without rows."""
    keras.utils.set_random_seed(3)
    generator = np.random.default_rng(0)
    x = generator.normal(size=(17, LENGTH, FEATURES)).astype("float32")
    # The mask covers a different share of the tokens on each replica.
    x[::3, 1:] = 0.0
    y = generator.normal(size=(17, LENGTH, FEATURES)).astype("float32")
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        layers = [
            keras.Input((LENGTH, FEATURES)),
            keras.layers.Masking(),
            keras.layers.Dense(FEATURES, "tanh"),
            mixture(),
        ]
        model = keras.Sequential(layers)
        model.compile(keras.optimizers.Adam(0.01, **optimizer), "mse", metrics=["mae"])
    for variable, value in zip(in_one_order(model), weights or (), strict=False):
        variable.assign(value)
    before = [variable.numpy() for variable in in_one_order(model)]
    with warnings.catch_warnings():
        warnings.filterwarnings("error", message=".*under a strategy it is not.*")
        logs = model.fit(x, y, batch_size=8, epochs=2, shuffle=False, verbose=0).history
        logs |= {"evaluated": model.evaluate(x, y, batch_size=8, verbose=0)}
    return model, before, logs


def in_one_order(model: Any) -> list[Any]:
    return [*model.trainable_variables, *model.non_trainable_variables]


def assert_same(one: tuple[Any, Any, Any], other: tuple[Any, Any, Any]) -> None:
    for a, b in zip(in_one_order(one[0]), in_one_order(other[0]), strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-6)
    for a, b in zip(one[0].optimizer.variables, other[0].optimizer.variables, strict=True):
        np.testing.assert_allclose(a.numpy(), b.numpy(), rtol=1e-6, atol=1e-6)
    assert one[2].keys() == other[2].keys()
    for name, logs in one[2].items():
        np.testing.assert_allclose(logs, other[2][name], rtol=1e-6)


@pytest.mark.parametrize("case", CASES)
def test_equals_plain_keras(case: str) -> None:
    arguments = CASES[case]
    two = trained(lambda: sparse(**arguments), strategies.MirroredStrategy(["CPU:0", "CPU:1"]))
    plain = trained(lambda: dense(**arguments), weights=two[1])
    assert_same(plain, two)
    if case != "losses":
        return
    three = trained(lambda: sparse(**arguments), strategies.MirroredStrategy([f"CPU:{i}" for i in range(3)]))
    assert_same(plain, three)


@pytest.mark.parity_all
def test_in_a_pipeline() -> None:
    def piped(mixture: Any, num_microbatches: int) -> list[Any]:
        keras.utils.set_random_seed(3)
        x = np.random.default_rng(0).normal(size=(8, LENGTH, FEATURES)).astype("float32")
        strategy = strategies.MirroredStrategy([f"CPU:{i}" for i in range(4)], mesh={"data": 2, "pipe": 2})
        layers = [keras.Input((LENGTH, FEATURES)), mixture(), keras.layers.Dense(FEATURES, "tanh"), mixture()]
        with strategy.scope() if num_microbatches else contextlib.nullcontext():
            model = keras.Sequential(layers)
            if num_microbatches:
                model = keras_ext.PipelineModel(model, num_microbatches=num_microbatches, partition="uniform")
            model.compile("sgd", "mse")
        with warnings.catch_warnings():
            warnings.filterwarnings("error", message=".*under a strategy it is not.*")
            logs = model.fit(x, x, batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
        return [logs, *model.get_weights()]

    def mixture() -> Any:
        return sparse(**CASES["losses"])

    for a, b in zip(piped(mixture, 0), piped(mixture, 1), strict=True):
        np.testing.assert_allclose(a, b, rtol=1e-6, atol=1e-6)
    # Batches of two rows, equal to top_k, so that a dim of choices could be mistaken for rows. Only the loss for
    # balance causes a warning: it is a product of means over a micro-batch.
    with pytest.warns(strategies.DifferenceWarning, match="A loss that a layer adds") as caught:
        piped(mixture, 2)
    assert all("in a pipeline it is not that of one device" in str(each.message) for each in caught)


def test_gradients_are_accumulated() -> None:
    arguments = CASES["losses"]
    two = trained(
        lambda: sparse(**arguments),
        strategies.MirroredStrategy(["CPU:0", "CPU:1"]),
        gradient_accumulation_steps=2,
    )
    assert_same(trained(lambda: dense(**arguments), weights=two[1], gradient_accumulation_steps=2), two)
