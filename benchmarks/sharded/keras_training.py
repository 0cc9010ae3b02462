"""A Keras contender in its process: `model.fit` under one of our strategies, with or without sharding."""

from __future__ import annotations

import dataclasses
import sys
from typing import Any

import keras
import tensorflow as tf
from harness.workers import Report
from mirrored import models

import keras_ext
import strategies
from sharded.cases import Workload
from sharded.clock import Clock


class StepClock(keras.callbacks.Callback):
    """Measures the last steps of each epoch; each turn is one epoch.

    Args:
        num_skipped: number of steps before them, at least 1.
        num_steps: number of measured steps.
        report: takes a measurement; returns at the next turn of this process.
    """

    def __init__(self, num_skipped: int, num_steps: int, report: Report) -> None:
        super().__init__()
        self._first, self._last = num_skipped - 1, num_skipped + num_steps - 1
        self._clock = Clock(num_steps, report)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts and stops the clock; on CPU devices a step has been computed when this is called."""
        if batch == self._last:
            self._clock.stop()
        elif batch == self._first:
            self._clock.start()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reports, and waits for the next turn."""
        if epoch == 0:
            found = keras_ext.memory_report(self.model)
            self._clock.hold(max(found.weights.values()), max(found.slots.values()))
        self._clock.hand_over()


def subject(workload: Workload) -> models.Subject:
    """Returns the model of a workload with its images and its optimizer."""
    if workload.model != "mlp":
        return dataclasses.replace(models.MODELS[workload.model], make_optimizer=_adam)

    def mlp() -> keras.Model:
        hidden = [keras.layers.Dense(workload.width, "relu") for _ in range(workload.num_layers)]
        last = keras.layers.Dense(models.NUM_CLASSES, "softmax")
        return keras.Sequential([keras.Input((workload.width,)), *hidden, last])

    return models.Subject((workload.width,), mlp, _adam)


def _adam() -> keras.Optimizer:
    return keras.optimizers.Adam(1e-3)


def run(name: str, shard: Any, workload: Workload, report: Report) -> None:
    """Trains one epoch per turn until the benchmark ends; call it before TensorFlow has started in this process.

    Args:
        name: name of the contender.
        shard: what its strategy shards; empty for nothing.
        workload: the training.
        report: takes measurements.
    """
    tf.get_logger().setLevel("ERROR")
    make = strategies.HorovodStrategy if name.startswith("horovod") else strategies.MultiWorkerMirroredStrategy
    # First of all: processes can be connected only before TensorFlow has run anything.
    strategy = make(shard=shard or None)
    keras.utils.set_random_seed(0)
    trained = subject(workload)
    with strategy.scope():
        model = models.compiled_model(trained)
    model.fit(
        models.dataset(trained, workload.batch_size * strategy.num_replicas_in_sync),
        epochs=sys.maxsize,
        steps_per_epoch=workload.num_skipped + workload.num_steps,
        callbacks=[StepClock(workload.num_skipped, workload.num_steps, report)],
        verbose=0,
        shuffle=False,
    )
