"""Models on meshes whose replicas span processes, against one device: run by `test_spanning` on all ranks at once.

Rank 0 trains the model in plain Keras, too, and broadcasts the difference, so that a failing test fails on all ranks,
and none waits for one that has failed. Each result is one row of the matrix in docs/numbers/parity_matrix.md, which
`python -m tests.strategies.processes.matrix` writes.
"""

from __future__ import annotations

import functools
import json
import os
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf
from keras import layers

import keras_ext
from tests.strategies.parity.harness import TOLERANCE, Case, compare, execute, fit_arrays
from tests.strategies.processes.matrix import chosen_meshes
from tests.strategies.processes.mesh_strategies import ENGINE, on

NUM_RANKS, NUM_LOCAL = int(os.environ.get("SUITE_RANKS", "2")), int(os.environ.get("SUITE_DEVICES", "1"))
NUM_MICROBATCHES = 3

Run = Callable[[Any, Any], Mapping[str, Any]]


@pytest.fixture(scope="session", autouse=True)
def _made_first() -> None:
    on(MESHES[0])


def mlp() -> keras.Model:
    """Returns a model of eight layers: at most one for each stage."""
    hidden = [layers.Dense(16, "tanh", name=f"hidden_{i}") for i in range(7)]
    return keras.Sequential([keras.Input((6,)), *hidden, layers.Dense(8, name="head")])


def resnet() -> keras.Model:
    """Returns a model with a shortcut in each block, and one over all blocks, which crosses every cut."""
    inputs = keras.Input((6, 6, 2))
    x = first = layers.Conv2D(16, 3, padding="same", name="stem")(inputs)
    for i in range(3):
        y = layers.Conv2D(16, 3, padding="same", activation="relu", name=f"block_{i}_up")(x)
        y = layers.Conv2D(16, 3, padding="same", name=f"block_{i}_down")(y)
        x = layers.Add(name=f"block_{i}_add")([x, y])
    x = layers.Add(name="shortcut")([x, first])
    x = layers.GlobalAveragePooling2D(name="pool")(x)
    return keras.Model(inputs, layers.Dense(8, name="head")(x))


def gpt() -> keras.Model:
    """Returns a model of four blocks between two uses of one table."""
    table = layers.ReversibleEmbedding(21, 16, name="tokens", embeddings_regularizer=keras.regularizers.L2(0.0))
    tokens = keras.Input((7,), dtype="int32")
    x = table(tokens)
    for i in range(4):
        y = layers.LayerNormalization(name=f"norm_{i}")(x)
        # No biases: the gradient of the keys' bias is rounding error only, which Adam would scale up to full steps.
        y = layers.MultiHeadAttention(8, 2, use_bias=False, name=f"attention_{i}")(y, y, use_causal_mask=True)
        x = layers.Add(name=f"add_{i}")([x, y])
        y = layers.LayerNormalization(name=f"ffn_norm_{i}")(x)
        y = layers.Dense(32, "gelu", name=f"up_{i}")(y)
        y = layers.Dense(16, name=f"down_{i}")(y)
        x = layers.Add(name=f"ffn_add_{i}")([x, y])
    return keras.Model(tokens, table(layers.LayerNormalization(name="norm")(x), reverse=True))


def data(name: str) -> tuple[np.ndarray, np.ndarray]:
    """Returns 30 rows: batches of 12, and one of 6."""
    random = np.random.default_rng(1)
    if name == "gpt":
        tokens = random.integers(0, 21, (30, 8)).astype("int32")
        return tokens[:, :-1], tokens[:, 1:]
    shape = (30, 6) if name == "mlp" else (30, 6, 6, 2)
    return random.standard_normal(shape).astype("float32"), random.integers(0, 8, 30)


MODELS: Mapping[str, Callable[[], keras.Model]] = {"mlp": mlp, "resnet": resnet, "gpt": gpt}
# Adam's steps amplify the rounding of tiny gradients in proportion to the rate. The GPT's rate is the usual one.
LEARNING_RATES = {"mlp": 1e-3, "resnet": 1e-3, "gpt": 3e-4}


def run_of(name: str) -> Run:
    x, y = data(name)
    # `evaluate` and `predict` each trace a function, which doubles the time of eight devices on two cores.
    return fit_arrays(x, y, epochs=3, batch_size=12, predict=NUM_RANKS * NUM_LOCAL < 8)


def spread(model: keras.Model, axes: Mapping[str, int], name: str) -> keras.Model:
    if axes.get("tensor", 1) > 1:
        model = keras_ext.parallelize(model, sequence_parallel=name == "gpt")
    if axes.get("pipe", 1) == 1:
        return model
    return keras_ext.PipelineModel(model, num_microbatches=NUM_MICROBATCHES)


def case(name: str, axes: Mapping[str, int]) -> Case:
    def make() -> keras.Model:
        model = spread(MODELS[name](), axes, name)
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(LEARNING_RATES[name], global_clipnorm=0.1), loss, metrics=["accuracy"])
        model.optimizer.build(model.trainable_variables)
        return model

    return Case("", make, run_of(name))


@functools.cache
def one_device(name: str) -> Any:
    return execute(case(name, {}), None)


def assert_same_on_all_ranks(values: list[np.ndarray], job: Any) -> None:
    """Asserts that values are bit-identical on all ranks."""
    bits = np.concatenate([np.ascontiguousarray(value).view(np.uint8).ravel() for value in values])
    gathered = job.gather(tf.constant(bits.astype("int32")[np.newaxis])).numpy()
    np.testing.assert_array_equal(gathered, np.repeat(gathered[:1], len(gathered), axis=0))


MESHES = chosen_meshes(NUM_RANKS, NUM_LOCAL, os.environ.get("SUITE_MESHES"))


@pytest.mark.parametrize("name", MODELS)
@pytest.mark.parametrize("axes", MESHES, ids=str)
def test_the_numbers_are_those_of_one_device(axes: Mapping[str, int], name: str) -> None:
    strategy = on(axes)
    job = strategy.extended.engine.process_group
    found = execute(case(name, axes), strategy)
    named = sorted(found.logs)
    assert_same_on_all_ranks([np.asarray(found.logs[key], "float64") for key in named], job)
    assert_same_on_all_ranks([*found.weights, *found.slots], job)
    largest = compare(one_device(name), found).largest if job.rank == 0 else 0.0
    largest = float(job.broadcast(tf.constant(largest, tf.float64)))
    if job.rank == 0:
        with Path(os.environ["SUITE_ROWS"]).open("a") as rows:
            row = {"engine": ENGINE, "ranks": NUM_RANKS, "devices": NUM_LOCAL, "axes": dict(axes), "model": name}
            rows.write(json.dumps({**row, "largest": largest}) + "\n")
    assert largest <= TOLERANCE


PARTITIONS: list[Any] = ["time", keras_ext.PartitionByTime(num_rows=4, max_stage_bytes=1e6), "parameters", "uniform"]


@pytest.mark.parametrize("axes", [axes for axes in MESHES if "pipe" in axes], ids=str)
@pytest.mark.parametrize("name", MODELS)
def test_every_partition_is_the_same_on_all_ranks(axes: Mapping[str, int], name: str) -> None:
    strategy = on(axes)
    job = strategy.extended.engine.process_group
    with strategy.scope():
        model = MODELS[name]()
        model = keras_ext.parallelize(model) if "tensor" in axes else model
        starts = [keras_ext.PipelineModel(model, partition=each).partition.starts for each in PARTITIONS]
    # The cuts of one run are equal, although measured times differ between runs and between ranks.
    assert_same_on_all_ranks([np.asarray(starts, "int32")], job)
    assert {len(each) for each in starts} == {axes["pipe"]}
