"""Trains a small image model, as one rank of a job over several hosts: tests here run it, pytest does not collect it.

Its steps can be slowed down, which leaves time for faults in the middle of `fit`.
"""

from __future__ import annotations

import argparse
import pickle
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf
from keras import layers

import keras_ext
import strategies
from tests.strategies.parity.harness import Case, Logs, Outcome, execute

# The last batch has 26 rows: 7, 7, 6 and 6 on 4 replicas.
NUM_ROWS, BATCH_SIZE, EPOCHS = 250, 32, 4
STEPS_PER_EPOCH = -(-NUM_ROWS // BATCH_SIZE)
NUM_STEPS = EPOCHS * STEPS_PER_EPOCH


def outcome(
    strategy: Any = None,
    callbacks: Sequence[keras.callbacks.Callback] = (),
    checkpoints: keras_ext.Checkpoints | None = None,
) -> Outcome:
    """Returns the result of training under the strategy, or in plain Keras on one device; resumes from a checkpoint."""

    def make() -> keras.Model:
        model: Any = keras.Sequential(
            [
                keras.Input((12, 12, 1)),
                layers.Conv2D(8, 3, activation="relu"),
                layers.MaxPooling2D(),
                layers.Flatten(),
                layers.Dense(32, "relu"),
                layers.Dense(10),
            ]
        )
        if strategy is not None and strategy.mesh.axes.get("pipe", 1) > 1:
            model = keras_ext.PipelineModel(model, num_microbatches=2, partition="uniform")
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.SGD(0.05, momentum=0.9), loss, metrics=["accuracy"])
        model.optimizer.build(model.trainable_variables)
        return model

    def run(model: Any, _: tf.distribute.Strategy | None) -> Logs:
        random = np.random.default_rng(1)
        digits = random.integers(0, 10, NUM_ROWS)
        noise = random.standard_normal((NUM_ROWS, 12, 12, 1))
        images = (noise + random.standard_normal((10, 12, 12, 1))[digits]).astype("float32")
        settings: dict[str, Any] = {"batch_size": BATCH_SIZE, "verbose": 0, "shuffle": False}
        settings["callbacks"] = [*callbacks, *([checkpoints] if checkpoints else [])]
        if checkpoints is None:
            return dict(model.fit(images, digits, epochs=EPOCHS, **settings).history)
        at = checkpoints.restore(model)
        if at.step:
            done = at.step * BATCH_SIZE
            model.fit(images[done:], digits[done:], initial_epoch=at.epoch, epochs=at.epoch + 1, **settings)
            at = checkpoints.restore(model)
        model.fit(images, digits, initial_epoch=at.epoch, epochs=EPOCHS, **settings)
        return dict(checkpoints.history)

    return execute(Case("", make, run), strategy)


class Progress(keras.callbacks.Callback):
    """Writes the number of steps that this rank has done to a file."""

    def __init__(self, file: Path, seconds_per_step: float) -> None:
        super().__init__()
        self._file, self._seconds_per_step = file, seconds_per_step
        self._count = 0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        self._count += 1
        self._file.write_text(str(self._count))
        time.sleep(self._seconds_per_step)


def main() -> None:
    parser = argparse.ArgumentParser()
    parser.add_argument("strategy")
    parser.add_argument("folder", type=Path, help="gets the number of steps of each rank, and what the first one has")
    parser.add_argument("--mesh", type=strategies.DeviceMesh.axes_of)
    parser.add_argument("--seconds-per-step", type=float, default=0.0)
    parser.add_argument("--timeout-seconds", type=float, default=600.0)
    parser.add_argument("--saves", action="store_true", help="checkpoints, from which it goes on")
    parser.add_argument("--late-rank", type=int, default=-1)
    parser.add_argument("--seconds-late", type=float, default=0.0)
    flags = parser.parse_args()
    if flags.late_rank == strategies.Cluster.from_environment().rank:
        time.sleep(flags.seconds_late)
    settings: dict[str, Any] = {"timeout_seconds": flags.timeout_seconds}
    if flags.strategy == "MultiWorkerMirroredStrategy":
        settings = {"communication_options": tf.distribute.experimental.CommunicationOptions(**settings)}
    strategy = getattr(strategies, flags.strategy)(mesh=flags.mesh, **settings)
    progress = Progress(flags.folder / f"steps{strategy.rank}", flags.seconds_per_step)
    checkpoints = keras_ext.Checkpoints(flags.folder / "checkpoints", STEPS_PER_EPOCH, every_steps=3)
    found = outcome(strategy, [progress], checkpoints if flags.saves else None)
    if strategy.is_chief:
        (flags.folder / "outcome").write_bytes(pickle.dumps(found))


if __name__ == "__main__":
    main()
