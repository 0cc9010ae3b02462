"""One contender in its process: a model of one block, trained by `train_on_batch`."""

from __future__ import annotations

import time
from typing import Any

import keras
import keras_hub
import numpy as np
from harness.workers import Report

import keras_ext
from experts.workload import Workload


def make_model(program: str, workload: Workload) -> Any:
    """Returns the compiled model of a contender."""
    keras.utils.set_random_seed(0)
    inputs = keras.Input((workload.length, workload.features))
    if program in ("hub", "replaced"):
        outputs, _ = hub_block(workload)(inputs)
    else:
        outputs = keras_ext.MixtureOfExperts(workload.num_experts, workload.hidden_dim, workload.top_k)(inputs)
    model = keras.Model(inputs, outputs)
    if program == "replaced":
        model = keras_ext.replace_experts(model)
    if program == "plain":
        # As if loaded from a file.
        model = keras.Model.from_config(model.get_config())
    model.compile(keras.optimizers.SGD(1e-3), "mse", jit_compile=False)
    return model


def hub_block(workload: Workload) -> Any:
    """Returns KerasHub's dense block, which has no public name."""
    backbone = keras_hub.models.MixtralBackbone(
        vocabulary_size=8,
        num_layers=1,
        num_query_heads=1,
        num_key_value_heads=1,
        hidden_dim=workload.features,
        intermediate_dim=workload.hidden_dim,
        num_experts=workload.num_experts,
        top_k=workload.top_k,
        router_jitter_noise=0.0,
    )
    [block] = [layer for layer in backbone._flatten_layers() if type(layer).__name__ == "MixtralSparseMoeBlock"]
    return block


def run(program: str, workload: Workload, report: Report) -> None:
    """Reports milliseconds per step until the benchmark ends."""
    model = make_model(program, workload)
    generator = np.random.default_rng(0)
    x = keras.ops.convert_to_tensor(
        generator.normal(size=(workload.rows, workload.length, workload.features)).astype("float32")
    )
    while True:
        # Warms up caches that went cold while waiting.
        model.train_on_batch(x, x)
        start = time.perf_counter()
        for _ in range(workload.num_steps):
            model.train_on_batch(x, x)
        report((time.perf_counter() - start) / workload.num_steps * 1e3)
