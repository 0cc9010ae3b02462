"""Commits in one process: training resumes from them without a difference. Several workers: test_elastic.py."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import keras_ext
import strategies
from strategies.testing import faults

STEPS_PER_EPOCH, EPOCHS, BATCH = 6, 3, 4


def train(state: strategies.elastic.State, hurt: faults.Faults | None = None, **changes: Any) -> Any:
    """Trains to the end, or until a fault; returns weights and history."""
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    keras.utils.set_random_seed(changes.get("seed", 1))
    with strategy.scope():
        layers = [keras.layers.Dense(8, "tanh"), keras.layers.Dropout(0.3), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((3,)), *layers[changes.get("skip", 0) :]])
        optimizer = keras.optimizers.Adam(0.01, gradient_accumulation_steps=2)
        model.compile(optimizer, "mse", metrics=["mae"])
    commits = keras_ext.Commits(state, STEPS_PER_EPOCH, every_steps=2)
    rows = np.random.RandomState(0).randn(STEPS_PER_EPOCH * BATCH, 4).astype(np.float32)
    callbacks = [faults.Injector(hurt or faults.Faults(), 0), commits]
    at = commits.restore(model)
    while at.epoch < EPOCHS:
        end = at.epoch + 1 if at.step else EPOCHS
        left = rows[at.step * BATCH :]
        model.fit(
            left[:, :3],
            left[:, 3:],
            batch_size=BATCH,
            shuffle=False,
            initial_epoch=at.epoch,
            epochs=end,
            verbose=0,
            callbacks=callbacks,
        )
        at = commits.restore(model)
    return model.get_weights(), commits.history


@pytest.mark.parametrize("step", [1, 9, 12])
def test_goes_on(step: int) -> None:
    weights, history = train(strategies.elastic.State())
    state = strategies.elastic.State()
    with pytest.raises(RuntimeError, match="asked for"):
        train(state, faults.fail_at(kind="raise", step=step))
    # Also before the first commit after a step: the initial weights are committed.
    found, resumed = train(state, seed=2)
    for one, other in zip(found, weights, strict=True):
        np.testing.assert_array_equal(one, other)
    assert resumed == history


def test_another_model_is_refused() -> None:
    state = strategies.elastic.State()
    train(state)
    with pytest.raises(ValueError, match="Make the same model in each call"):
        train(state, skip=1)
