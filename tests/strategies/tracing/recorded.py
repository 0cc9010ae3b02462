"""Records jobs of two ranks, each also trained without a record: run by `test_recording`, never collected.

Arguments: the strategy's name, and the folder for what rank 0 writes.
"""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_ext
import strategies
from strategies.tracing import recording

ENGINE, FOLDER = sys.argv[1], Path(sys.argv[2])
X = np.random.default_rng(0).standard_normal((64, 8)).astype("float32")
Y = X[:, :2] * X[:, 2:4]


def trained(strategy: Any, name: str, *, pipeline: bool, callbacks: list[Any]) -> None:
    """Trains eight steps, and writes weights and logs."""
    keras.utils.set_random_seed(0)
    with strategy.scope():
        layers = [keras.Input((8,)), *(keras.layers.Dense(16, "relu") for _ in range(2)), keras.layers.Dense(2)]
        model = keras.Sequential(layers)
        if pipeline:
            model = keras_ext.PipelineModel(layers, num_stages=2, partition="uniform", num_microbatches=2)
        model.compile("adam", "mse")
    history = model.fit(X, Y, batch_size=16, epochs=2, shuffle=False, verbose=0, callbacks=callbacks)
    model.save_weights(FOLDER / f"{name}.weights.h5")
    if strategy.is_chief:
        found = {"logs": history.history, "steps": int(model.optimizer.iterations)}
        (FOLDER / f"{name}.json").write_text(json.dumps(found))


def run(name: str, mesh: dict[str, int], *, first_step: int = 3, **options: Any) -> None:
    """Trains with and without a record."""
    strategy = getattr(strategies, ENGINE)(mesh=mesh, **options)
    timeline = keras_ext.JobTimeline(FOLDER / f"{name}.json", first_step=first_step, num_steps=3)
    pipeline = "pipe" in mesh
    trained(strategy, f"{name}_plain", pipeline=pipeline, callbacks=[])
    trained(strategy, f"{name}_recorded", pipeline=pipeline, callbacks=[timeline])
    if strategy.is_chief:
        assert timeline.trace is not None
        texts = [record.to_text() for record in timeline.trace.records]
        (FOLDER / f"{name}.records").write_text("\n".join(texts))


run("pipe", {"pipe": 2})
run("weights", {"data": 2}, shard="weights")
# As if each rank had a host, and a clock, of its own.
setattr(recording, "clock_id", lambda: f"host of rank {strategies.Cluster.from_environment().rank}")  # noqa: B010
run("hosts", {"data": 2})
