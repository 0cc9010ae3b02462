"""Sums over the devices of one process as on GPUs, between CPU devices that pass for GPUs."""

from __future__ import annotations

import contextlib
from collections import Counter
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.steps import device_reductions
from tests.callers_graphs import callers_graph
from tests.strategies.parity.harness import TOLERANCE
from tests.would_be_gpus import would_be_gpus

GPUS = ["CPU:1", "CPU:2", "CPU:3"]


def trained(scope: Any) -> tuple[list[np.ndarray], list[tf.Operation]]:
    """Trains a model with sparse gradients and dense ones; returns its weights, and the operations of its step."""
    keras.utils.set_random_seed(3)
    with scope:
        layers = [keras.layers.Embedding(9, 4), keras.layers.Flatten(), keras.layers.Dense(16, "tanh")]
        model = keras.Sequential([keras.Input((4,), dtype="int32"), *layers, keras.layers.Dense(1)])
        model.compile(keras.optimizers.Adam(0.01, clipnorm=0.1), "mse", jit_compile=False)
    random = np.random.default_rng(1)
    x, y = random.integers(0, 9, (22, 4)).astype("int32"), random.standard_normal((22, 1)).astype("float32")
    graphs: list[tf.Graph] = []

    def step(data: Any) -> Any:
        graphs.append(callers_graph())
        return keras.Model.train_step(model, data)

    model.train_step = step
    model.fit(x, y, batch_size=8, epochs=2, verbose=0, shuffle=False)
    return [np.asarray(weight) for weight in model.get_weights()], graphs[0].get_operations()


def on_gpus() -> tuple[list[np.ndarray], list[tf.Operation]]:
    with would_be_gpus():
        return trained(strategies.MirroredStrategy(GPUS).scope())


def place(op: tf.Operation) -> str:
    return str(op.device[-5:])


def test_of_gradients(monkeypatch: pytest.MonkeyPatch) -> None:
    """Dense gradients are packed as they become ready; IndexedSlices go from each device to each."""
    expected, _ = trained(contextlib.nullcontext())
    # The 16 + 1 gradients of the last layer are ready first, then the 256 + 16 of the other.
    for num_bytes, packs in ((2**20, [289]), (4 * 64, [33, 256])):
        monkeypatch.setattr(device_reductions, "GPU_BUCKET_BYTES", num_bytes)
        received, ops = on_gpus()
        for one, other in zip(received, expected, strict=True):
            np.testing.assert_allclose(one, other, rtol=0, atol=TOLERANCE)
        for device in GPUS:
            sums = [op for op in ops if op.type == "CollectiveReduceV2" and place(op) == device]
            assert [op.inputs[0].shape.num_elements() for op in sums] == packs
    joined = [op for op in ops if op.type == "ConcatV2" and {place(i.op) for i in op.inputs[:-1]} == set(GPUS)]
    # Values and indices, on each device.
    assert Counter(map(place, joined)) == dict.fromkeys(GPUS, 2)
