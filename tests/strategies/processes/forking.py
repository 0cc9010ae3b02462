"""Trains on a PyDataset with forked workers, and forks children that die: ``forking.py STRATEGY FOLDER KEEPER``.

Run by `test_forking`, on one device (STRATEGY is "none") and by each rank. KEEPER is "checkpoints" or "none".
"""

from __future__ import annotations

import contextlib
import multiprocessing
import os
import signal
import sys
import time
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import keras_ext
import strategies

X = np.random.default_rng(0).normal(size=(24, 4)).astype("float32")


class Batches(keras.utils.PyDataset):
    """Four batches, the last of which is smaller."""

    def __len__(self) -> int:
        return 4

    def __getitem__(self, index: int) -> tuple[np.ndarray, np.ndarray]:
        x = X[7 * index : 7 * index + 7]
        return x, x[:, :1]


class Forks(keras.callbacks.Callback):
    """Forks children that end in every possible way, in the middle of an epoch."""

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        """Forks after the second step."""
        if batch != 1:
            return
        fork = multiprocessing.get_context("fork")
        for signum in (signal.SIGTERM, signal.SIGKILL):
            child = fork.Process(target=time.sleep, args=[60])
            child.start()
            os.kill(child.pid or 0, signum)
            child.join()
            if child.exitcode != -signum:
                raise RuntimeError(f"{signum!r} was to end a child. Received: exit code {child.exitcode}.")
        pid = os.fork()
        if pid == 0:
            # At Python's regular exit TensorFlow would wait for threads that the child does not have.
            os._exit(3)
        _, status = os.waitpid(pid, 0)
        if os.waitstatus_to_exitcode(status) != 3:
            raise RuntimeError(f"A child was to end with 3. Received: status {status}.")


def main(name: str, folder: Path, keeper: str) -> None:
    """Trains; rank 0 writes the weights and losses."""
    if name == "MirroredStrategy":
        cpu = tf.config.list_physical_devices("CPU")[0]
        tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    strategy = None if name == "none" else getattr(strategies, name)()
    keras.utils.set_random_seed(1)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(3, "tanh"), keras.layers.Dense(1)])
        model.compile(keras.optimizers.SGD(0.1), "mse")
    callbacks: list[keras.callbacks.Callback] = [Forks()]
    if keeper == "checkpoints":
        callbacks.append(keras_ext.Checkpoints(folder / "checkpoints", steps_per_epoch=4, every_steps=2))
    data = Batches(workers=2, use_multiprocessing=True, max_queue_size=2)
    losses = model.fit(data, epochs=2, verbose=0, callbacks=callbacks).history["loss"]
    if strategy is None or strategy.is_chief:
        np.save(folder / "numbers.npy", np.concatenate([*map(np.ravel, model.get_weights()), losses]))


if __name__ == "__main__":
    main(sys.argv[1], Path(sys.argv[2]), sys.argv[3])
