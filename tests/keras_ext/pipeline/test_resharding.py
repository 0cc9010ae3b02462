"""Stages whose weights are unsharded for each pass of a micro-batch, and resharded after it (``reshard_after_pass``).

``tests/strategies/sharding/test_backward_gathers.py`` tests the graph and its dependencies;
``tests/strategies/processes/spanning_sharded.py`` tests stages in several processes.
"""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies import layer_api
from strategies.collectives.loopback import LOOPBACK
from tests.strategies.parity.harness import TOLERANCE

L: Any = keras.layers
FOUR = [f"CPU:{i}" for i in range(4)]
MESH = {"data": 2, "pipe": 2}
#: Unit sizes: with the first, a kernel of 8 x 8 is its own unit; with the second, a unit has several, across stages.
ALONE, TOGETHER = 1, 2560


def language_model(*, draws: bool) -> keras.Model:
    """Returns a model with a table in the first and the last stage, penalties, and kernels that are reshaped."""
    words, table = keras.Input((7,), dtype="int32"), L.ReversibleEmbedding(50, 8)
    x = L.MultiHeadAttention(2, 4)(table(words), table(words))
    for k in range(3):
        x = L.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(0.01) if k % 2 else None)(x)
        x = L.LayerNormalization()(L.Dropout(0.3, seed=k)(x) if draws else x)
    return keras.Model(words, table(x, reverse=True))


def trained(model: str, arguments: dict[str, Any] | None) -> list[np.ndarray]:
    """Returns losses, weights and slots: on one device, or in stages made with `arguments`."""
    keras.utils.set_random_seed(3)
    strategy: Any = tf.distribute.get_strategy()
    if arguments is not None:
        strategy = strategies.MirroredStrategy(FOUR, mesh=MESH, shard="weights")
    before = keras.config.dtype_policy()
    keras.config.set_dtype_policy("mixed_bfloat16" if model == "cast, draws" else "float32")
    try:
        with strategy.scope():
            made = language_model(draws=model == "cast, draws")
            if arguments is not None:
                made = keras_ext.PipelineModel(made, num_microbatches=2, partition="uniform", **arguments)
            loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
            made.compile(keras.optimizers.Adam(1e-2, epsilon=1e-2), loss)
    finally:
        keras.config.set_dtype_policy(before)
    words = np.random.default_rng(0).integers(0, 50, (2, 22, 7))
    logs = made.fit(words[0], words[1], batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    slots = layer_api.values_of(made, layer_api.joined(made.optimizer.variables))
    return [np.array(logs), *made.get_weights(), *slots]


@functools.cache
def trained_once(model: str, in_stages: bool) -> list[np.ndarray]:
    """Trains once for all cases: for this model all schedules and numbers of stages give the same bits."""
    return trained(model, {} if in_stages else None)


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize(
    ("model", "schedule", "remat", "bytes_of_unit"),
    [
        pytest.param("cast, draws", "gpipe", None, TOGETHER, marks=pytest.mark.parity_all),
        ("cast, draws", "1f1b", "all", ALONE),
        pytest.param("plain", "1f1b", None, ALONE, marks=pytest.mark.parity_all),
        # Four processes compare with one device.
        pytest.param("plain", "interleaved_1f1b", "all", TOGETHER, marks=pytest.mark.parity_all),
        pytest.param("cast, draws", "gpipe", "all", ALONE, marks=pytest.mark.parity_all),
        pytest.param("cast, draws", "1f1b", "all", TOGETHER, marks=pytest.mark.parity_all),
        pytest.param("plain", "interleaved_1f1b", None, TOGETHER, marks=pytest.mark.parity_all),
        pytest.param("plain", "interleaved_1f1b", "all", ALONE, marks=pytest.mark.parity_all),
    ],
)
def test_equals_weights_that_stay_and_one_device(
    model: str, schedule: str, remat: str | None, bytes_of_unit: int, monkeypatch: pytest.MonkeyPatch
) -> None:
    stayed = trained_once(model, True)
    monkeypatch.setattr(LOOPBACK, "bucket_bytes", bytes_of_unit)
    found = trained(model, {"schedule": schedule, "remat": remat, "reshard_after_pass": True})
    for mine, theirs in zip(found, stayed, strict=True):
        np.testing.assert_array_equal(mine, theirs)
    # Draws and roundings depend on the micro-batches.
    for mine, theirs in zip(found, trained_once(model, False), strict=True) if model == "plain" else ():
        np.testing.assert_allclose(mine, theirs, rtol=TOLERANCE, atol=TOLERANCE)
