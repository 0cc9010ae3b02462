"""A small training in which a rank fails: ``job.py STRATEGY FAULT [FOLDER [SHARD [FORM]]]``, run by each rank.

Faults that this file does not define come from the environment, through the injector. With a folder, checkpoints are
saved there, at the end of epochs and in their middle, and the job goes on from the last one. With the form "background"
each rank saves its part, in the background.
"""

from __future__ import annotations

import os
import sys
import time
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_ext
import strategies
from strategies.testing import faults

#: The timeout for faults that only a timeout ends, and the timeout for all others, which must end long before it.
SHORT_SECONDS, LONG_SECONDS = 8.0, 100.0
ENDED_BY_TIMEOUT = ("absent", "stop", "sleep")
#: Differences that ranks find before the first step.
REFUSED = ("clipnorm", "batch size", "dtype policy")
STEPS_PER_EPOCH = 4
#: After the second step of the second epoch.
STEP = 6
X = np.random.default_rng(0).normal(size=(64, 8)).astype("float32")
Y = X[:, :1].copy()


class Faulty(keras.callbacks.Callback):
    """Runs the fault after a step."""

    def __init__(self, fault: Callable[[keras.Model], Any]) -> None:
        super().__init__()
        self._fault = fault
        self._num_steps = 0

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Counts steps, and runs the fault after the last one."""
        self._num_steps += 1
        if self._num_steps == STEP:
            said("hurt")
            self._fault(self.model)


def said(word: str) -> None:
    """Prints a word with the time in one write: the ranks may share a terminal."""
    sys.stdout.write(f"{word} {time.time():.2f}\n")
    sys.stdout.flush()


#: Faults of the last rank in the middle of training, by name.
STEPS: dict[str, Callable[[keras.Model], Any]] = {
    "leave at once": lambda model: os._exit(0),
    "sleep": lambda model: time.sleep(600),
    "evaluate": lambda model: model.evaluate(X, Y, verbose=0),
    "stop training": lambda model: setattr(model, "stop_training", True),
}


def main(name: str, fault: str, folder: str = "", shard: Any = None, form: str = "whole") -> None:
    """Trains, with the fault."""
    rank = strategies.Cluster.from_environment().rank
    is_other = rank == 1
    timeout_seconds = SHORT_SECONDS if fault in ENDED_BY_TIMEOUT else LONG_SECONDS
    if fault == "absent" and is_other:
        sys.exit(0)
    if fault == "late" and is_other:
        time.sleep(4.0)
    if name == "HorovodStrategy":
        strategy = strategies.HorovodStrategy(timeout_seconds=timeout_seconds, shard=shard)
    else:
        options = tf.distribute.experimental.CommunicationOptions(timeout_seconds=timeout_seconds)
        strategy = strategies.MultiWorkerMirroredStrategy(communication_options=options, shard=shard)
    keras.utils.set_random_seed(1)
    if fault in ("width", "layers"):
        said("hurt")
    units = 12 if fault == "width" and is_other else 16
    more = [keras.layers.Dense(4)] if fault == "layers" and is_other else []
    with strategy.scope():
        last = keras.layers.Dense(1, dtype="mixed_bfloat16" if fault == "dtype policy" and is_other else None)
        model = keras.Sequential([keras.Input((8,)), keras.layers.Dense(units), *more, last])
        model.compile(keras.optimizers.Adam(clipnorm=1.0 if fault == "clipnorm" and is_other else None), "mse")
    callbacks: list[Any] = [faults.Injector()]
    if is_other and fault in STEPS:
        callbacks.append(Faulty(STEPS[fault]))
    at = keras_ext.TrainingPosition()
    if folder:
        parts = form == "background"
        saves = keras_ext.Checkpoints(folder, STEPS_PER_EPOCH, every_steps=2, sharded=parts, background=parts)
        callbacks.append(saves)
        at = saves.restore(model)
    if fault in REFUSED:
        said("hurt")
    batch_size = 8 if fault == "batch size" and is_other else 16
    arguments = {"batch_size": batch_size, "shuffle": False, "verbose": 0, "callbacks": callbacks}
    if at.step:
        done = at.step * batch_size
        model.fit(X[done:], Y[done:], initial_epoch=at.epoch, epochs=at.epoch + 1, **arguments)
        at = keras_ext.TrainingPosition(at.epoch + 1)
    model.fit(X, Y, initial_epoch=at.epoch, epochs=4, **arguments)
    total = float(sum(np.abs(weight).sum() for weight in model.get_weights()))
    said(f"weights {total:.9g} {model.optimizer.iterations.numpy()}")


if __name__ == "__main__":
    main(*sys.argv[1:])
