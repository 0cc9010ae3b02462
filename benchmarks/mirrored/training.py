"""One contender in its process: `model.fit` under its strategy, timed in its steady state."""

from __future__ import annotations

import contextlib
import sys
import time
from typing import Any

import keras
import tensorflow as tf
from harness.workers import Report

import strategies
from mirrored import models
from mirrored.workload import Workload


class StepClock(keras.callbacks.Callback):
    """Reports for each epoch the images per second from the end of one of its steps to the end of its last.

    Costs once per epoch (callbacks, fetching the logs) are excluded, and so is waiting for a turn.

    Args:
        workload: gives `num_skipped`, the number of steps before the clock starts, at least 1.
        report: takes images/s; returns at the next turn of this process.
    """

    def __init__(self, workload: Workload, report: Report) -> None:
        super().__init__()
        self._workload = workload
        self._report = report
        self._start = self._end = 0.0

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Reads the clock; on CPU devices a step has been computed when this is called."""
        self._end = time.perf_counter()
        if batch == self._workload.num_skipped - 1:
            self._start = self._end

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Reports, and waits for the next turn."""
        num_images = self._workload.num_steps * self._workload.batch_size
        self._report(num_images / (self._end - self._start))


def make_strategy(name: str, devices: list[str]) -> tf.distribute.Strategy | None:
    """Returns the strategy called `name` over `devices`; None for plain Keras."""
    match name:
        case "plain":
            return None
        case "ours":
            return strategies.MirroredStrategy(devices)
        case "stock":
            return tf.distribute.MirroredStrategy(devices)
        case "stock_one_device":
            return tf.distribute.MirroredStrategy(devices, cross_device_ops=tf.distribute.ReductionToOneDevice())
    raise ValueError(f"Expected plain, ours, stock or stock_one_device. Received: {name!r}.")


def run(name: str, workload: Workload, num_devices: int, report: Report) -> None:
    """Trains one epoch per turn until the benchmark ends; call it before TensorFlow has started in this process.

    One `fit` serves all turns: under TensorFlow's strategy every `fit` takes seconds to start.
    The threads stay at TensorFlow's defaults: all logical devices of a process share them, however many there are.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    tf.get_logger().setLevel("ERROR")
    keras.utils.set_random_seed(0)
    strategy = make_strategy(name, [f"CPU:{index}" for index in range(num_devices)])
    subject = models.MODELS[workload.model]
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = models.compiled_model(subject, jit_compile=workload.jit_compile)
    model.fit(
        models.dataset(subject, workload.batch_size),
        epochs=sys.maxsize,
        steps_per_epoch=workload.num_skipped + workload.num_steps,
        callbacks=[StepClock(workload, report)],
        verbose=0,
        shuffle=False,
    )
