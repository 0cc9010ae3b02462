"""Keras contenders in their processes: one device, two devices of one process, or two processes."""

from __future__ import annotations

import contextlib
import functools
from typing import Any

import keras
import tensorflow as tf
from harness.workers import Report
from pipeline import keras_models as stages
from tensor_parallel import keras_training as shards

from model_parallel import clock
from model_parallel.cases import NUM_PARTS, Case, Workload


def run(name: str, workload: Workload, report: Report) -> None:
    """Trains until the benchmark ends; call it before TensorFlow has started in this process."""
    tf.get_logger().setLevel("ERROR")
    strategy = _make_strategy(name, workload.cases[0].axis)
    keras.utils.set_random_seed(0)

    def make_step(case: Case) -> clock.Call:
        with contextlib.nullcontext() if strategy is None else strategy.scope():
            model = _make_model(case, strategy is not None)
            model.compile(keras.optimizers.SGD(1e-3), "mse")
        return functools.partial(model.train_on_batch, *_batch(case))

    exchanges = None
    if name in ("multi_worker", "horovod"):
        from model_parallel import exchanging

        exchanges = functools.partial(exchanging.make_exchange, strategy)
    clock.measure(workload, make_step, exchanges, report)


def _make_strategy(name: str, axis: str) -> Any:
    if name == "plain":
        return None
    import strategies

    mesh = {axis: NUM_PARTS}
    if name == "multi_worker":
        return strategies.MultiWorkerMirroredStrategy(mesh=mesh)
    if name == "horovod":
        return strategies.HorovodStrategy(mesh=mesh)
    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * NUM_PARTS)
    return strategies.MirroredStrategy([f"CPU:{index}" for index in range(NUM_PARTS)], mesh=mesh)


def _make_model(case: Case, is_split: bool) -> Any:
    in_stages = case.axis == "pipe"
    model = stages.make_model("dense", case.in_stages(NUM_PARTS)) if in_stages else shards.make_model(case.in_shards)
    if not is_split:
        return model
    import keras_ext

    if not in_stages:
        return keras_ext.parallelize(model)
    return keras_ext.PipelineModel(
        model,
        num_microbatches=case.num_microbatches,
        schedule=case.schedule,
        partition=stages.cuts("dense", case.in_stages(NUM_PARTS)),
    )


def _batch(case: Case) -> tuple[Any, Any]:
    return stages.data("dense", case.in_stages(NUM_PARTS)) if case.axis == "pipe" else shards.make_batch(case.in_shards)
