"""Reads of sharded weights by steps of several models: small weights of all of them are gathered together."""

from __future__ import annotations

import gc
import weakref
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import strategies


def test_a_traced_step_outlives_another_model_whose_weights_it_gathers() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"], shard="weights")

    def made() -> Any:
        with strategy.scope():
            return keras.Sequential([keras.Input((6,)), keras.layers.Dense(8), keras.layers.Dense(1)])

    first, second = made(), made()
    rows = np.ones((4, 6), "float32")

    @tf.function
    def step(x: Any) -> Any:
        return strategy.run(second, (x,))

    before = strategy.experimental_local_results(step(rows))
    other = weakref.ref(first.weights[0].value)
    del first
    gc.collect()
    # A graph that calls the traced step looks at all variables that the step reads.
    after = strategy.experimental_local_results(tf.function(lambda x: step(x))(rows))
    np.testing.assert_array_equal(after, before)
    assert other() is not None
