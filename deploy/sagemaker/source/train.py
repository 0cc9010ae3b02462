"""Trains a digit classifier on SageMaker in script mode: the entry point of training_job.json.

SageMaker's toolkit starts it once on each machine, and sets SM_HOSTS, from which the strategy knows its rank.
"""

import argparse
import os
from pathlib import Path

import keras
import numpy as np

import keras_ext
import strategies


def main() -> None:
    """Trains on the channel `training`, and leaves the model where SageMaker uploads it."""
    parser = argparse.ArgumentParser()
    parser.add_argument("--epochs", type=int, default=15)
    parser.add_argument("--batch_size", type=int, default=64, help="of all machines together")
    parser.add_argument("--checkpoints", type=Path, default=Path("/opt/ml/checkpoints"))
    flags, _ = parser.parse_known_args()

    strategy = strategies.MultiWorkerMirroredStrategy()
    with np.load(Path(os.environ["SM_CHANNEL_TRAINING"]) / "digits.npz") as digits:
        images, labels = digits["images"].astype("float32") / 255, digits["labels"]
    with strategy.scope():
        keras.utils.set_random_seed(0)
        model = keras.Sequential(
            [
                keras.Input(images.shape[1:]),
                keras.layers.Flatten(),
                keras.layers.Dense(64, "relu"),
                keras.layers.Dense(10),
            ]
        )
        loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
        model.compile(keras.optimizers.Adam(2e-3), loss, metrics=["accuracy"])

    # Rank 0 reads and writes checkpoints, so that no file system is shared; SageMaker copies its folder to and from S3.
    checkpoints = keras_ext.Checkpoints(flags.checkpoints, steps_per_epoch=-(-len(images) // flags.batch_size))
    settings = {"batch_size": flags.batch_size, "shuffle": False, "callbacks": [checkpoints]}
    settings["verbose"] = 2 if strategy.is_chief else 0
    at = checkpoints.restore(model)
    if at.step:
        done = at.step * flags.batch_size
        model.fit(images[done:], labels[done:], initial_epoch=at.epoch, epochs=at.epoch + 1, **settings)
        at = checkpoints.restore(model)
    model.fit(images, labels, initial_epoch=at.epoch, epochs=flags.epochs, **settings)
    # Every rank calls it, and rank 0 writes.
    model.save(Path(os.environ["SM_MODEL_DIR"]) / "model.keras")


if __name__ == "__main__":
    main()
