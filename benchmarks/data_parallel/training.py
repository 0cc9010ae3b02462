"""A Keras contender in its process: `model.fit` under its strategy, or without one."""

from __future__ import annotations

import contextlib
import sys
from typing import Any

import keras
import tensorflow as tf
from harness.workers import Report
from mirrored import models
from mirrored.training import StepClock
from mirrored.workload import Workload

import strategies


class MendedMultiWorker(tf.distribute.MultiWorkerMirroredStrategy):
    """TensorFlow's strategy with the least change that makes it run in Keras 3's `fit`: another `reduce`."""

    def reduce(self, reduce_op: Any, value: Any, axis: Any = None) -> Any:
        """Returns the reduced value; of a nest of values, of which Keras needs only the shapes, the local ones."""
        if not isinstance(value, tf.distribute.DistributedValues) and tf.nest.is_nested(value):
            return tf.nest.map_structure(lambda v: self.experimental_local_results(v)[0], value)
        # Keras requests a reduction of scalars along dimension 0, which they do not have.
        is_scalar = getattr(self.experimental_local_results(value)[0], "shape", tf.TensorShape(None)).rank == 0
        return tf.distribute.Strategy.reduce(self, reduce_op, value, None if is_scalar else axis)


def make_strategy(name: str) -> tf.distribute.Strategy | None:
    """Returns the strategy of a contender; None for plain Keras."""
    match name:
        case "independent" | "independent_again":
            return None
        case "multi_worker":
            return strategies.MultiWorkerMirroredStrategy()
        case "horovod":
            return strategies.HorovodStrategy()
        case "stock":
            return MendedMultiWorker()
    raise ValueError(f"Expected a contender that trains with `fit`. Received: {name!r}.")


def dataset(workload: Workload, num_processes: int, autotune: bool) -> tf.data.Dataset:
    """Returns an endless dataset of global batches for `num_processes` processes."""
    batches = models.dataset(models.MODELS[workload.model], workload.batch_size * num_processes)
    options = tf.data.Options()
    options.autotune.enabled = autotune
    return batches.with_options(options)


def run(name: str, workload: Workload, autotune: bool, report: Report) -> None:
    """Trains one epoch per turn until the benchmark ends; call it before TensorFlow has started in this process."""
    tf.get_logger().setLevel("ERROR")
    # First of all: processes can be connected only before TensorFlow has run anything.
    strategy = make_strategy(name)
    keras.utils.set_random_seed(0)
    with contextlib.nullcontext() if strategy is None else strategy.scope():
        model = models.compiled_model(models.MODELS[workload.model])
    num_processes = 1 if strategy is None else strategy.num_replicas_in_sync
    model.fit(
        dataset(workload, num_processes, autotune),
        epochs=sys.maxsize,
        steps_per_epoch=workload.num_skipped + workload.num_steps,
        callbacks=[StepClock(workload, report)],
        verbose=0,
        shuffle=False,
    )
