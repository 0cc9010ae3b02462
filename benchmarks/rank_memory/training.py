"""One rank: makes, initializes, saves, loads and trains a model, and reports its peak of memory in each phase."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from harness import memory
from harness.workers import Report

import keras_ext
import strategies
from rank_memory.cases import PHASES, Case, layer_name

_NUM_ROWS = 8


def run(case: Case, cluster: str, folder: str, report: Report) -> None:
    """Reports the peak of one phase per turn; call it before TensorFlow has started in this process.

    Args:
        case: the model.
        cluster: how the ranks are connected.
        folder: for the model's files.
        report: takes a measurement; returns at the next turn of this process.
    """
    tf.get_logger().setLevel("ERROR")
    make = strategies.HorovodStrategy if cluster == "horovod" else strategies.MultiWorkerMirroredStrategy
    phases = _phases(case, make(mesh=dict(case.mesh)), Path(folder) / "model")
    report(0.0)
    for phase in PHASES:
        report(memory.peak(phases[phase])[1])


def _phases(case: Case, strategy: Any, path: Path) -> Mapping[str, Callable[[], object]]:
    """Returns the phases of one model's life, to be called in order."""
    model: Any = None
    x = np.ones((_NUM_ROWS, case.width), "float32")

    def build() -> None:
        nonlocal model
        with strategy.scope():
            model = _make_model(case)
            # SGD has no slots: weights and gradients are measured.
            model.compile(keras.optimizers.SGD(1e-3), "mse")

    return {
        "build": build,
        "first pass": lambda: model.evaluate(x, x, batch_size=_NUM_ROWS, verbose=0),
        "save_weights": lambda: model.save_weights(f"{path}.weights.h5"),
        "load_weights": lambda: model.load_weights(f"{path}.weights.h5"),
        "train": lambda: model.fit(x, x, batch_size=_NUM_ROWS, epochs=2, verbose=0),
        "save": lambda: model.save(f"{path}.keras"),
    }


def _make_model(case: Case) -> Any:
    keras.utils.set_random_seed(0)
    layers = [
        keras.layers.Dense(case.width, "tanh", use_bias=False, name=layer_name(index))
        for index in range(case.num_layers)
    ]
    model = keras.Sequential([keras.Input((case.width,)), *layers])
    if "tensor" in case.mesh:
        model = keras_ext.parallelize(model)
    if "pipe" in case.mesh:
        model = keras_ext.PipelineModel(model, num_microbatches=2, partition=case.cuts)
    return model
