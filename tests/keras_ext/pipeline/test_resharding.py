"""Stages whose weights are gathered for each pass of a micro-batch, and dropped behind it (``reshard_after_pass``)."""

from __future__ import annotations

import functools
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import keras_ext
import strategies
from strategies.engine import sharded_weights
from tests.strategies.parity.harness import TOLERANCE

L: Any = keras.layers
FOUR = [f"CPU:{i}" for i in range(4)]
#: With these, a kernel of 8 x 8 is a unit of its own; several are, over the borders of stages, and biases are small.
ALONE, TOGETHER = 1, 2560


def language_model() -> keras.Model:
    """Its table is used in the first stage and in the last; there are penalties, draws and reshaped kernels."""
    table = L.ReversibleEmbedding(50, 8)
    words = keras.Input((7,), dtype="int32")
    x = table(words)
    for k in range(4):
        x = L.Dense(8, "tanh", kernel_regularizer=keras.regularizers.L2(0.01) if k % 2 else None)(x)
        x = L.Dropout(0.3, seed=k)(L.LayerNormalization()(x))
    return keras.Model(words, table(x, reverse=True))


def trained(arguments: dict[str, Any] | None, bytes_of_unit: int = ALONE, policy: str = "float32") -> list[np.ndarray]:
    """Returns losses, weights and slots: on one device, or in stages that are made with the arguments."""
    keras.utils.set_random_seed(3)
    before = keras.config.dtype_policy()
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(sharded_weights, "_UNIT_BYTES", bytes_of_unit)
        keras.config.set_dtype_policy(policy)
        strategy: Any = tf.distribute.get_strategy()
        if arguments is not None:
            strategy = strategies.MirroredStrategy(FOUR, mesh={"data": 2, "pipe": 2}, shard="weights")
        try:
            with strategy.scope():
                model = language_model()
                if arguments is not None:
                    model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform", **arguments)
                loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
                model.compile(keras.optimizers.Adam(1e-2, epsilon=1e-2), loss)
        finally:
            keras.config.set_dtype_policy(before)
        words = np.random.default_rng(0).integers(0, 50, (2, 22, 7))
        logs = model.fit(words[0], words[1], batch_size=8, epochs=2, shuffle=False, verbose=0).history["loss"]
    return [np.array(logs), *model.get_weights(), *(np.asarray(each) for each in model.optimizer.variables)]


once = functools.cache(lambda schedule: trained({"schedule": schedule}))


@pytest.mark.usefixtures("without_rewriting")
@pytest.mark.parametrize(
    ("schedule", "remat", "bytes_of_unit"),
    [
        ("gpipe", None, TOGETHER),
        ("gpipe", "all", ALONE),
        ("1f1b", None, ALONE),
        ("1f1b", "all", TOGETHER),
        ("interleaved_1f1b", None, ALONE),
        ("interleaved_1f1b", "all", TOGETHER),
    ],
)
def test_equals_weights_that_stay(schedule: str, remat: str | None, bytes_of_unit: int) -> None:
    found = trained({"schedule": schedule, "remat": remat, "reshard_after_pass": True}, bytes_of_unit)
    for mine, theirs in zip(found, once(schedule), strict=True):
        np.testing.assert_array_equal(mine, theirs)


if __name__ == "__main__":
    pass
