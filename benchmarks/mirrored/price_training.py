"""A contender of `--price` in its process, where parts of the package are replaced by ones that do nothing."""

from __future__ import annotations

import dataclasses
import sys
from collections.abc import Sequence
from typing import Any

import keras
import tensorflow as tf
from harness.workers import Report

import strategies
from mirrored import models
from mirrored.price import AGREEMENT, LEDGER, ROW_WEIGHTS, Job
from mirrored.training import StepClock
from mirrored.workload import Workload
from strategies.batches.agreed_dataset import AgreedIterator
from strategies.collectives.ledger import Ledger


def run(job: Job, workload: Workload, without: Sequence[str] | None, report: Report) -> None:
    """Trains one epoch per turn until the benchmark ends; call it before TensorFlow has started in this process.

    Args:
        job: the strategy.
        workload: what is trained.
        without: the parts that are switched off; None to call `strategies.exact()`.
        report: takes images/s.
    """
    tf.get_logger().setLevel("ERROR")
    if without is None:
        keras.utils.set_random_seed(0)
        strategies.exact()
    elif AGREEMENT in without:
        _never_agree()
    if without is not None and LEDGER in without:
        _never_count()
    strategy = _strategy(job)
    keras.utils.set_random_seed(0)
    subject = models.MODELS[workload.model]
    with strategy.scope():
        model = models.compiled_model(subject)
    # The processes' images/s are added up.
    own = dataclasses.replace(workload, batch_size=workload.batch_size // job.num_processes)
    model.fit(
        models.dataset(subject, workload.batch_size, is_static=without is not None and ROW_WEIGHTS in without),
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


def _never_agree() -> None:
    """Lets each process believe that all others have a batch with as many rows as its own."""

    def alone(iterator: AgreedIterator, have_more: bool, num_rows: int) -> tuple[list[list[int]], None]:
        return [[int(have_more), num_rows]] * iterator._agreement.num_positions, None

    AgreedIterator._exchange_state = alone  # type: ignore[method-assign]


def _never_count() -> None:
    """Leaves collectives out of the ledger."""

    def nothing(ledger: Ledger, *_: Any, **__: Any) -> Any:
        return ledger._nothing

    Ledger.entry = nothing  # type: ignore[method-assign]
