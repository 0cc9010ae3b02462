"""Losses that are not means over rows, in micro-batches with different shares of the divisor."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
from tests.keras_ext.tensor.harness import assert_parity
from tests.strategies.parity.harness import NUM_ROWS, features

L = keras.layers
REDUCTIONS = ("sum_over_batch_size", "sum", "mean_with_sample_weight")
MESHES = {"pipe=2": {"pipe": 2}, "data=2,pipe=2": {"data": 2, "pipe": 2}}


def ragged() -> np.ndarray:
    """Returns sequences: the first rows are long, and one row is all padding."""
    ids = np.random.default_rng(3).integers(1, 11, (NUM_ROWS, 7)).astype("int32")
    lengths = np.maximum(0, 7 - np.arange(NUM_ROWS) % 9)
    return np.where(np.arange(7) < lengths[:, None], ids, 0).astype("int32")


def masked(split: bool, reduction: str, loss: Any = keras.losses.SparseCategoricalCrossentropy) -> Any:
    ids = keras.Input((7,), dtype="int32")
    h = L.Embedding(11, 6, mask_zero=True)(ids)
    # Masks pass through a Dense as through a loop, which is many times slower to trace: one test below has a loop.
    model = keras.Model(ids, L.Dense(11, activation="softmax")(L.Dense(6, "tanh")(h)))
    if split:
        model = keras_ext.PipelineModel(model, num_microbatches=3, partition="uniform")
    rate = 0.01 if reduction == "sum" else 0.3
    model.compile(keras.optimizers.SGD(rate), loss(reduction=reduction), metrics=["accuracy"])
    return model


@pytest.mark.parametrize("axes", MESHES.values(), ids=MESHES)
@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_masked_sequences(reduction: str, axes: Any) -> None:
    assert_parity(lambda split: masked(split, reduction), ragged(), ragged(), axes, predict=True)


@pytest.mark.parametrize("reduction", REDUCTIONS)
def test_masked_sequences_with_weights_of_entries(reduction: str) -> None:
    weights = np.random.default_rng(0).uniform(0, 2, (NUM_ROWS, 7)).astype("float32")
    assert_parity(lambda split: masked(split, reduction), ragged(), ragged(), {"pipe": 2}, sample_weight=weights)


def test_one_output_twice() -> None:
    def make(split: bool) -> Any:
        x = keras.Input((3,))
        h = L.Dense(4, "tanh")(x)
        y = L.Dense(2)(h)
        model = keras.Model(x, [y, h, y])
        if split:
            model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
        model.compile(keras.optimizers.SGD(0.1), ["mse", "mae", "mae"])
        return model

    targets = [features(NUM_ROWS, width, seed=width) for width in (2, 4, 2)]
    assert_parity(make, features(NUM_ROWS, 3), targets, {"pipe": 2}, predict=True)


def test_two_outputs_with_losses_of_two_kinds() -> None:
    def make(split: bool) -> Any:
        x = keras.Input((7,), dtype="int32")
        h = L.Embedding(11, 6, mask_zero=True)(x)
        h = L.Dense(6, "tanh")(h)
        outputs = {"next": L.Dense(11, name="next")(h), "size": L.Dense(1, name="size")(L.GRU(4)(h))}
        model = keras.Model(x, outputs)
        if split:
            model = keras_ext.PipelineModel(model, num_microbatches=3, partition="uniform")
        losses = {
            "next": keras.losses.SparseCategoricalCrossentropy(from_logits=True),
            "size": keras.losses.MeanSquaredError(reduction="sum"),
        }
        model.compile(keras.optimizers.SGD(0.01), losses, loss_weights={"next": 1.0, "size": 0.1})
        return model

    y = {"next": ragged(), "size": features(NUM_ROWS, 1, seed=4)}
    weights = {
        "next": np.linspace(0, 1, NUM_ROWS * 7, dtype="float32").reshape(NUM_ROWS, 7),
        "size": np.linspace(0, 1, NUM_ROWS, dtype="float32"),
    }
    assert_parity(make, ragged(), y, {"data": 2, "pipe": 2}, sample_weight=weights)


def test_trained_by_single_batches_without_a_strategy() -> None:
    """The first step builds the loss: nothing has built it before."""
    x = ragged()[:6]
    results = []
    for split in (False, True):
        keras.utils.set_random_seed(2)
        model = masked(False, "sum_over_batch_size")
        if split:
            model = keras_ext.PipelineModel(model, 2, num_microbatches=3, partition="uniform")
            model.compile(keras.optimizers.SGD(0.3), keras.losses.SparseCategoricalCrossentropy(), metrics=["accuracy"])
        results.append([model.train_on_batch(x, x) for _ in range(3)])
    np.testing.assert_allclose(results[0], results[1], rtol=0, atol=1e-6)


def test_losses_are_as_they_were() -> None:
    loss = keras.losses.SparseCategoricalCrossentropy(reduction="sum")
    model = masked(True, "sum", lambda reduction: loss)
    model.fit(ragged(), ragged(), verbose=0)
    assert loss.reduction == "sum"
    assert model._compile_loss._flat_losses[0].loss is loss


@pytest.mark.parametrize("reduction", REDUCTIONS[:1] + REDUCTIONS[2:])
@pytest.mark.parametrize("mask_zero", [True, False])
def test_a_class_that_is_ignored(mask_zero: bool, reduction: str) -> None:
    def make(split: bool) -> Any:
        ids = keras.Input((7,), dtype="int32")
        h = L.Dense(6, "tanh")(L.Embedding(11, 6, mask_zero=mask_zero)(ids))
        model = keras.Model(ids, L.Dense(11)(h))
        if split:
            model = keras_ext.PipelineModel(model, num_microbatches=3, partition="uniform")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True, ignore_class=3, reduction=reduction)
        model.compile(keras.optimizers.SGD(0.1), loss)
        return model

    assert_parity(make, ragged(), ragged(), {"data": 2, "pipe": 2})


def test_refuses_losses_that_are_not_reduced() -> None:
    model = masked(True, "sum")
    model.compile("sgd", keras.losses.SparseCategoricalCrossentropy(reduction=None))
    with pytest.raises(ValueError, match="give the loss a reduction"):
        model.train_on_batch(ragged(), ragged())
