"""Trains over however many workers there are; for horovodrun with a script of hosts. Writes weights and step losses."""

from __future__ import annotations

import json
import os
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_ext
import strategies
from strategies.testing import faults

NUM_ROWS, BATCH, EPOCHS = 103, 12, 7
# The last batch has 7 rows: three workers take unequal parts.
STEPS_PER_EPOCH = 9


def make_model() -> keras.Model:
    """A model whose initial weights depend on a seed, compiled with a metric and an optimizer that has slots."""
    keras.utils.set_random_seed(3)
    model = keras.Sequential([keras.Input((5,)), keras.layers.Dense(8, "tanh"), keras.layers.Dense(1)])
    model.compile(keras.optimizers.Adam(0.01, clipnorm=0.5), "mse", metrics=["mae"])
    return model


def batches_from(epoch: int, step: int) -> Any:
    """The batches of an epoch from a step on, and of all later epochs: each epoch in an order of its own."""
    rows = np.random.RandomState(0).randn(NUM_ROWS, 6).astype(np.float32)
    import tensorflow as tf

    def generate() -> Any:
        for each in range(epoch, EPOCHS):
            order = np.random.RandomState(each).permutation(NUM_ROWS)
            for number in range(step if each == epoch else 0, STEPS_PER_EPOCH):
                chosen = rows[order[number * BATCH : (number + 1) * BATCH]]
                yield chosen[:, :5], chosen[:, 5:]

    spec = (tf.TensorSpec([None, 5], tf.float32), tf.TensorSpec([None, 1], tf.float32))
    return tf.data.Dataset.from_generator(generate, output_signature=spec)


class StepLogs(keras.callbacks.Callback):
    """Keeps the logs of each step, counted over all epochs; a step that is run again replaces what it was."""

    def __init__(self, kept: dict[int, list[float]], seconds: float = 0.0) -> None:
        super().__init__()
        self._kept, self._seconds = kept, seconds

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        self._kept[int(keras.ops.convert_to_numpy(self.model.optimizer.iterations)) - 1] = [logs["loss"], logs["mae"]]
        time.sleep(self._seconds)


def fit(model: keras.Model, checkpoints: Any, callbacks: list[Any]) -> None:
    """Trains to the end, from where `checkpoints` goes on."""
    at = checkpoints.restore(model)
    while at.epoch < EPOCHS:
        end = at.epoch + 1 if at.step else EPOCHS
        model.fit(
            batches_from(at.epoch, at.step),
            initial_epoch=at.epoch,
            epochs=end,
            steps_per_epoch=STEPS_PER_EPOCH - at.step,
            verbose=0,
            shuffle=False,
            callbacks=[*callbacks, checkpoints],
        )
        at = checkpoints.restore(model)


@strategies.elastic.run
def train(state: strategies.elastic.State, folder: Path, kept: dict[int, list[float]]) -> None:
    """Trains; slowly while there is one worker, so that others can come."""
    strategy = strategies.HorovodStrategy()
    size = strategy.num_replicas_in_sync
    with strategy.scope():
        model = make_model()
    commits = keras_ext.Commits(state, STEPS_PER_EPOCH, every_steps=4)
    say(f"start {state.num_starts} rank {strategy.rank} of {size} on {os.environ['HOROVOD_HOSTNAME']}")
    fit(model, commits, [faults.Injector(), StepLogs(kept, 0.25 if size == 1 else 0.0)])
    if strategy.is_chief:
        np.savez(folder / "weights.npz", *model.get_weights())
        logs = {"steps": kept, "history": commits.history}
        (folder / "logs.json").write_text(json.dumps(logs, default=float))
    say(f"end rank {strategy.rank} of {size}")


def say(text: str) -> None:
    """Writes a line at once, with the time."""
    print(f"{time.time():.2f} process {os.getpid()}: {text}", flush=True)


if __name__ == "__main__":
    train(Path(sys.argv[1]), {})
