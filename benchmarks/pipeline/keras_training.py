"""Keras contenders in their process: `train_on_batch` of a plain model, or of a model in stages."""

from __future__ import annotations

import functools
from typing import Any

import keras
import tensorflow as tf
from harness.workers import Report

from pipeline import clock, keras_models, memory
from pipeline.cases import Case, Workload
from pipeline.kinds import KINDS
from pipeline.parts import PARTS
from pipeline.unrolled import Unrolled


def run(name: str, workload: Workload, report: Report) -> None:
    """Trains until the benchmark ends; call it before TensorFlow has started in this process."""
    tf.get_logger().setLevel("ERROR")
    cpu, kind = tf.config.list_physical_devices("CPU")[0], KINDS[name]
    num_devices = max(case.num_stages for case in workload.cases) if kind.schedule and not kind.processes else 1
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * num_devices)
    make_step = functools.partial(_make_step, name, workload.part)
    if workload.part == "memory":
        memory.measure(workload, make_step, report)
    elif PARTS[workload.part].is_of_first_step:
        clock.measure_first(workload, make_step, report)
    else:
        clock.measure(workload, make_step, report)


def _make_step(name: str, part: str, case: Case) -> clock.Step:
    keras.utils.set_random_seed(0)
    x, y = keras_models.data(part, case)
    model = _make_model(name, part, case)
    return functools.partial(model.train_on_batch, x, y)


def _make_model(name: str, part: str, case: Case) -> Any:
    schedule = KINDS[name].schedule
    if schedule is None:
        model = keras_models.make_model(part, case)
        return _compiled(Unrolled(model, case.num_microbatches) if name == "unrolled" else model, part)
    import keras_ext

    stages = case.with_stages_per_device(KINDS[name].stages_per_device, shorter=part == "sleep")
    with _strategy(KINDS[name].processes, case.num_stages).scope():
        model = keras_ext.PipelineModel(
            keras_models.make_model(part, stages),
            num_microbatches=case.num_microbatches,
            schedule=schedule,
            partition=keras_models.cuts(part, stages),
        )
        return _compiled(model, part)


@functools.cache
def _strategy(processes: bool, num_stages: int) -> Any:
    """Returns a strategy for stages on devices of this process or in processes, the same one for all cases."""
    import strategies

    if processes:
        return strategies.MultiWorkerMirroredStrategy(mesh={"pipe": num_stages})
    return strategies.MirroredStrategy([f"CPU:{index}" for index in range(num_stages)], mesh={"pipe": num_stages})


def _compiled(model: Any, part: str) -> Any:
    model.compile(keras.optimizers.SGD(1e-3), keras_models.loss(part))
    return model
