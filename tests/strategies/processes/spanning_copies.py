"""Copies of a weight in several processes of one replica stay bit-identical: run by `test_spanning_copies`.

There are three replicas, because sums of two numbers do not depend on their order.
"""

from __future__ import annotations

import json
import os
from collections.abc import Mapping

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_ext
from strategies import layer_api
from tests.strategies.processes.mesh_strategies import on

AXES: Mapping[str, int] = json.loads(os.environ["SUITE_MESHES"])[0]
# Large enough for the ring: below a third of a megabyte every process adds up all terms itself, in one order.
VOCABULARY, UNITS = 6000, 32


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    on(AXES)


def language_model() -> keras.Model:
    table = layers.ReversibleEmbedding(VOCABULARY, UNITS, name="tokens")
    tokens = keras.Input((7,), dtype="int32")
    x = table(tokens)
    for i in range(3):
        x = layers.Dense(UNITS, "tanh", name=f"hidden_{i}")(layers.LayerNormalization(name=f"norm_{i}")(x))
    return keras.Model(tokens, table(x, reverse=True))


@pytest.mark.parametrize("accumulated", [None, 2])
def test_copies_have_the_same_bits(accumulated: int | None) -> None:
    strategy = on(AXES)
    job = strategy.extended.engine.process_group
    keras.utils.set_random_seed(1)
    with strategy.scope():
        model = language_model()
        if "tensor" in AXES:
            model = keras_ext.parallelize(model)
        if "pipe" in AXES:
            model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(1e-3, gradient_accumulation_steps=accumulated), loss)
    tokens = np.random.default_rng(0).integers(0, VOCABULARY, (36, 8))
    model.fit(tokens[:, :-1], tokens[:, 1:], batch_size=9, epochs=3, verbose=0, shuffle=False)
    for variable in model.trainable_variables:
        # The processes of a split weight hold different shards.
        held = [] if "shards" in vars(variable) or layer_api.is_remote(variable) else [variable.value.values[0]]
        size = int(np.prod(variable.shape))
        own = np.ravel(held[0]) if held else np.full(size, np.nan, "float32")
        everywhere = job.gather(tf.constant(own.view("int32")[np.newaxis])).numpy().view("float32")
        copies = [each for each in everywhere if not np.isnan(each).all()]
        for copy in copies[1:]:
            np.testing.assert_array_equal(copy, copies[0], err_msg=variable.path)
        if variable.path.startswith("tokens") and "tensor" not in AXES:
            assert len(copies) == job.num_processes
