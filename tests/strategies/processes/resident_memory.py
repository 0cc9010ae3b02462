"""Resident memory of one of two processes that hold a model by halves, while it builds, saves, loads and trains.

Prints, for each phase, the peak beyond that of a tiny model in the same phase, in weights of the model.
"""

from __future__ import annotations

import gc
import json
import os
import sys
import threading
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_ext
import strategies

_MB = 2**20


class Peak:
    """The largest resident memory while it is entered, in bytes, looked at every two milliseconds."""

    def __init__(self) -> None:
        self._ends = threading.Event()
        self.bytes = resident_bytes()
        self._thread = threading.Thread(target=self._look, daemon=True)

    def _look(self) -> None:
        while not self._ends.wait(0.002):
            self.bytes = max(self.bytes, resident_bytes())

    def __enter__(self) -> Peak:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._ends.set()
        self._thread.join()
        self.bytes = max(self.bytes, resident_bytes())


def resident_bytes() -> int:
    return int(Path("/proc/self/statm").read_text().split()[1]) * os.sysconf("SC_PAGE_SIZE")


def make(width: int) -> keras.Model:
    keras.utils.set_random_seed(3)
    layers = [keras.layers.Dense(width, "tanh", use_bias=False, name=f"dense_{i}") for i in range(4)]
    return keras.Sequential([keras.Input((width,)), *layers])


def phases(width: int, axes: dict[str, int], strategy: Any, folder: Path) -> dict[str, int]:
    """Returns the peak of resident memory in each phase."""
    found: dict[str, int] = {}
    held: dict[str, Any] = {}

    def measured(phase: str, function: Callable[[], Any]) -> None:
        gc.collect()
        with Peak() as peak:
            held["last"] = function()
        found[phase] = peak.bytes

    def build() -> None:
        with strategy.scope():
            model = make(width)
            model = keras_ext.parallelize(model) if "tensor" in axes else model
            if "pipe" in axes:
                model = keras_ext.PipelineModel(model, num_microbatches=2, partition=["dense_2"])
            # No slots: what is measured are weights and gradients.
            model.compile(keras.optimizers.SGD(1e-3), "mse")
        held["model"] = model

    x = np.ones((4, width), "float32")
    path = str(folder / f"{width}.weights.h5")
    measured("build", build)
    measured("save", lambda: held["model"].save_weights(path))
    measured("load", lambda: held["model"].load_weights(path))
    measured("train", lambda: held["model"].fit(x, x, batch_size=4, epochs=2, verbose=0))
    measured("save again", lambda: held["model"].save(str(folder / f"{width}.keras")))
    return found


if __name__ == "__main__":
    axes = json.loads(sys.argv[1])
    strategy = getattr(strategies, os.environ["SUITE_STRATEGY"])(mesh=axes)
    folder = Path(os.environ["SUITE_FOLDER"])
    folder.mkdir(exist_ok=True)
    width = int(sys.argv[2])
    base = phases(8, axes, strategy, folder)
    found = phases(width, axes, strategy, folder)
    weight = width * width * 4 / _MB
    beyond = {phase: (found[phase] - base[phase]) / _MB / weight for phase in found}
    print(f"rank {strategy.rank} weights: {json.dumps(beyond)}", flush=True)
