"""One contender in its process: the first step of `fit` of a new model, at each turn."""

from __future__ import annotations

import contextlib
import gc
import time
from collections.abc import Mapping

import keras
import numpy as np
import tensorflow as tf
from harness import memory
from harness.workers import Report

import keras_ext
import strategies
from first_step.function_calls import longest_call

_VOCABULARY, _LENGTH, _WIDTH = 64, 16, 32
_NUM_ROWS = 16


def run(
    name: str,
    model: str,
    num_blocks: int,
    num_devices: int,
    axes: Mapping[str, int] | None,
    of_memory: bool,
    report: Report,
) -> None:
    """Trains one step of a new model per turn until the benchmark ends.

    Args:
        name: "plain", "ours" or "stock"; "graph" is ours without Python and without TensorFlow's graph optimizer: what
            remains is to place, partition and instantiate the graph, and to run it once.
        model: a name in `contenders.MODELS`.
        num_blocks: the number of blocks of the GPT.
        num_devices: the number of logical CPU devices.
        axes: the mesh of ours; None for data parallelism over all devices.
        of_memory: True to report megabytes, else seconds.
        report: takes a measurement; returns at the next turn of this process.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    tf.get_logger().setLevel("ERROR")
    x, y = _rows(model)
    while True:
        keras.backend.clear_session()
        gc.collect()
        made = _compiled(name, model, num_blocks, num_devices, axes)

        def first_step(made: keras.Model = made) -> None:
            made.fit(x, y, batch_size=_NUM_ROWS, steps_per_epoch=1, verbose=0)

        if of_memory:
            before, highest = memory.peak(first_step)
            report((highest - before) / 2**20)
        elif name == "graph":
            report(longest_call(first_step))
        else:
            start = time.perf_counter()
            first_step()
            report(time.perf_counter() - start)


def _rows(model: str) -> tuple[np.ndarray, np.ndarray]:
    random = np.random.default_rng(0)
    if model == "gpt":
        tokens = random.integers(0, _VOCABULARY, (_NUM_ROWS, _LENGTH))
        return tokens, np.roll(tokens, -1, 1)
    return random.random((_NUM_ROWS, 64, 64, 3), np.float32), random.integers(0, 10, _NUM_ROWS)


def _compiled(name: str, model: str, num_blocks: int, num_devices: int, axes: Mapping[str, int] | None) -> keras.Model:
    devices = [f"CPU:{index}" for index in range(num_devices)]
    strategy: tf.distribute.Strategy | None = None
    if name in ("ours", "graph"):
        strategy = strategies.MirroredStrategy(devices, mesh=axes)
    elif name == "stock":
        strategy = tf.distribute.MirroredStrategy(devices)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        made = _gpt(num_blocks) if model == "gpt" else _resnet50()
        for axis in axes or ():
            made = keras_ext.parallelize(made) if axis == "tensor" else keras_ext.PipelineModel(made, 4)
        # Without XLA, which TensorFlow's strategy does not support.
        made.compile("adam", "sparse_categorical_crossentropy", jit_compile=False)
    return made


def _gpt(num_blocks: int) -> keras.Model:
    layers = keras.layers
    tokens = keras.Input((_LENGTH,), dtype="int32")
    x = layers.Embedding(_VOCABULARY, _WIDTH)(tokens)
    for _ in range(num_blocks):
        attended = layers.MultiHeadAttention(2, _WIDTH // 2)(
            *[layers.LayerNormalization()(x)] * 2, use_causal_mask=True
        )
        x = x + layers.Dropout(0.1)(attended)
        x = x + layers.Dense(_WIDTH)(layers.Dense(4 * _WIDTH, activation="gelu")(layers.LayerNormalization()(x)))
    return keras.Model(tokens, layers.Dense(_VOCABULARY, activation="softmax")(layers.LayerNormalization()(x)))


def _resnet50() -> keras.Model:
    return keras.applications.ResNet50(weights=None, input_shape=(64, 64, 3), classes=10)
