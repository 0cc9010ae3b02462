"""A Keras contender inside its process: `model.fit` under one of our strategies, the optimizer whole or in shards."""

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
    """Measures the last steps of each epoch: one epoch is one turn.

    Args:
        num_skipped: steps before them, at least 1.
        num_steps: that are measured.
        report: takes a measurement; returns when it is this process' turn again.
    """

    def __init__(self, num_skipped: int, num_steps: int, report: Report) -> None:
        super().__init__()
        self._first, self._last = num_skipped - 1, num_skipped + num_steps - 1
        self._clock = Clock(num_steps, report)

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Starts and stops; on CPU devices a step has been computed when this is called."""
        if batch == self._last:
            self._clock.stop()
        elif batch == self._first:
            self._clock.start()

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reports and waits."""
        if epoch == 0:
            found = keras_ext.memory_report(self.model)
            self._clock.hold(max(found.weights.values()), max(found.slots.values()))
        self._clock.hand_over()


def subject(workload: Workload) -> models.Subject:
    """The model of a workload, its images and its optimizer."""
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
    """Trains in a process that has not used TensorFlow yet, one epoch per turn, until nobody asks any more.

    Args:
        name: of the contender.
        shard: what its strategy has in shards; empty for nothing.
        workload: what it trains.
        report: takes measurements.
    """
    tf.get_logger().setLevel("ERROR")
    make = strategies.HorovodStrategy if name.startswith("horovod") else strategies.MultiWorkerMirroredStrategy
    # First of all: processes can be joined only before TensorFlow has run anything.
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
