"""One contender inside its process: `model.fit` under its strategy, with a clock at the steady part."""

from __future__ import annotations

import contextlib
import time
from collections.abc import Callable
from typing import Any

import keras
import tensorflow as tf

import strategies
from mirrored import workloads
from mirrored.contenders import Workload


class StepClock(keras.callbacks.Callback):
    """Measures an epoch from the end of one of its steps to the end of its last.

    What every epoch costs once (making the iterator, fetching the logs) is outside, tracing too.

    Args:
        num_skipped: steps before the clock starts, at least 1.
    """

    def __init__(self, num_skipped: int) -> None:
        super().__init__()
        self._num_skipped = num_skipped
        self._start = self._end = 0.0

    @property
    def seconds(self) -> float:
        """From the end of the last skipped step to the end of the last step."""
        return self._end - self._start

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Reads the clock; on CPU devices a step has been computed when this is called."""
        self._end = time.perf_counter()
        if batch == self._num_skipped - 1:
            self._start = self._end


def make_strategy(name: str, devices: list[str]) -> tf.distribute.Strategy | None:
    """The strategy called `name` over `devices`; None is plain Keras."""
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


def build(name: str, workload: Workload, num_devices: int) -> Callable[[], float]:
    """Makes model and data in a process that has not used TensorFlow yet; returns what measures images/s once.

    The threads stay as TensorFlow sets them: all logical devices of a process share them, however many there are.
    """
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    tf.get_logger().setLevel("ERROR")
    keras.utils.set_random_seed(0)
    strategy = make_strategy(name, [f"CPU:{index}" for index in range(num_devices)])
    subject = workloads.MODELS[workload.model]
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = workloads.compiled_model(subject)
    data = workloads.dataset(subject, workload.batch_size)

    def measure() -> float:
        clock = StepClock(workload.num_skipped)
        steps = workload.num_skipped + workload.num_steps
        model.fit(data, steps_per_epoch=steps, callbacks=[clock], verbose=0, shuffle=False)
        return workload.num_steps * workload.batch_size / clock.seconds

    return measure
