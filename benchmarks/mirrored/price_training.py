"""A contender of `--price` in its process: `model.fit` with parts of the package switched off."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from harness.workers import Report

import strategies
from mirrored import models, switches
from mirrored.training import StepClock
from mirrored.workload import AGREEMENT, LEDGER, ROW_WEIGHTS, Job, Workload


def run(job: Job, workload: Workload, without: Sequence[str] | None, report: Report) -> None:
    """Trains one epoch per turn until the benchmark ends; call it before TensorFlow has started in this process.

    Args:
        job: the strategy.
        workload: what is trained.
        without: the parts that are switched off; None to call `strategies.exact()`.
        report: takes images/s.
    """
    tf.get_logger().setLevel("ERROR")
    parts = without or ()
    if without is None:
        keras.utils.set_random_seed(0)
        strategies.exact()
    if AGREEMENT in parts:
        switches.never_agree()
    if LEDGER in parts:
        switches.never_count()
    strategy = _strategy(job)
    keras.utils.set_random_seed(0)
    subject = models.MODELS[workload.model]
    with strategy.scope():
        model = models.compiled_model(subject)
    # The processes' images/s are added up.
    own = dataclasses.replace(workload, batch_size=workload.batch_size // job.num_processes)
    model.fit(
        models.dataset(subject, workload.batch_size, is_static=ROW_WEIGHTS in parts),
        epochs=sys.maxsize,
        steps_per_epoch=workload.num_skipped + workload.num_steps,
        callbacks=[StepClock(own, report)],
        verbose=0,
        shuffle=False,
    )


def _strategy(job: Job) -> Any:
    if job.num_processes > 1:
        return strategies.MultiWorkerMirroredStrategy()
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * 2)
    return strategies.MirroredStrategy(["CPU:0", "CPU:1"])
