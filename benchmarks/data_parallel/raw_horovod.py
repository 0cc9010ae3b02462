"""Training over Horovod without a strategy, as in Horovod's own examples: a step in one tf.function."""

from __future__ import annotations

import itertools
import time

import horovod.tensorflow as hvd
import keras
import tensorflow as tf
from harness.workers import Report
from mirrored import models
from mirrored.workload import Workload

from data_parallel import training


def run(workload: Workload, autotune: bool, report: Report) -> None:
    """Trains the same number of steps per turn as the others, until the benchmark ends. The loss is its only metric."""
    tf.get_logger().setLevel("ERROR")
    hvd.init()
    keras.utils.set_random_seed(0)
    subject = models.MODELS[workload.model]
    model, optimizer = subject.make_model(), subject.make_optimizer()
    optimizer.build(model.trainable_variables)
    weights = [variable.value for variable in model.trainable_variables]
    hvd.broadcast_variables([variable.value for variable in (*model.variables, *optimizer.variables)], root_rank=0)
    loss_function = keras.losses.SparseCategoricalCrossentropy()
    batches = iter(training.dataset(workload, 1, autotune))

    @tf.function
    def step() -> tf.Tensor:
        images, labels = next(batches)
        with tf.GradientTape() as tape:
            loss = loss_function(labels, model(images, training=True))
        tape = hvd.DistributedGradientTape(tape)
        optimizer.apply(tape.gradient(loss, weights), model.trainable_variables)
        return loss

    while True:
        start = 0.0
        for index in itertools.count(1):
            step()
            if index == workload.num_skipped:
                start = time.perf_counter()
            if index == workload.num_skipped + workload.num_steps:
                break
        report(workload.num_steps * workload.batch_size / (time.perf_counter() - start))
