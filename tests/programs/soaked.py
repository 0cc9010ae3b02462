"""Trains a tiny model with frequent checkpoints, and says when it has finished: the program that the soak hurts."""

from __future__ import annotations

import sys
from pathlib import Path

import keras
import numpy as np
import tensorflow as tf

import keras_ext
import strategies
from strategies.testing import faults

EPOCHS, STEPS_PER_EPOCH, EVERY_STEPS, BATCH = 6, 20, 4, 8
# How long a rank may keep the others waiting: stopped ones end the job after that.
TIMEOUT_SECONDS = 10


def main(folder: Path, engine: str) -> None:
    """Trains from the last checkpoint on; rank 0 writes the weights at the end."""
    strategy: strategies.MultiWorkerMirroredStrategy | strategies.HorovodStrategy
    if engine == "horovod":
        strategy = strategies.HorovodStrategy(timeout_seconds=TIMEOUT_SECONDS)
    else:
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=TIMEOUT_SECONDS)
        strategy = strategies.MultiWorkerMirroredStrategy(communication_options=options)
    keras.utils.set_random_seed(1)
    with strategy.scope():
        layers = [keras.layers.Dense(16, "tanh"), keras.layers.Dropout(0.2), keras.layers.Dense(1)]
        model = keras.Sequential([keras.Input((8,)), *layers])
        model.compile(keras.optimizers.Adam(0.01, clipnorm=1.0), "mse", metrics=["mae"])
    checkpoints = keras_ext.Checkpoints(folder / "checkpoints", STEPS_PER_EPOCH, every_steps=EVERY_STEPS)
    rows = np.random.RandomState(0).randn(STEPS_PER_EPOCH * BATCH, 9).astype(np.float32)
    callbacks = [faults.Injector(), checkpoints]
    at = checkpoints.restore(model)
    while at.epoch < EPOCHS:
        left = rows[at.step * BATCH :]
        model.fit(
            left[:, :8],
            left[:, 8:],
            batch_size=BATCH,
            shuffle=False,
            initial_epoch=at.epoch,
            epochs=at.epoch + 1 if at.step else EPOCHS,
            verbose=0,
            callbacks=callbacks,
        )
        at = checkpoints.restore(model)
    if strategy.is_chief:
        with (folder / "weights.part").open("wb") as file:
            np.savez(file, *model.get_weights())
        (folder / "weights.part").rename(folder / "weights.npz")


if __name__ == "__main__":
    main(Path(sys.argv[1]), sys.argv[2])
