"""A process, or two, for each setting, and one that predicts the steps of all of them."""

from __future__ import annotations

import functools
import json
import statistics
import time
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from harness import clusters
from harness.workers import Contender, Report

from planning.cases import Setting, Workload, make_batch, make_model

#: The row of the process that predicts.
PLAN = "plan"
_MOST_DEVICES = 4


def contenders(
    workload: Workload, settings: Sequence[Setting], links: Mapping[str, Any], folder: str
) -> list[Contender]:
    """Returns the contenders of a workload.

    Args:
        workload: the model and its batch.
        settings: the meshes.
        links: the rates between two processes by mesh axis.
        folder: for what contenders write besides their measurements.
    """
    plan = functools.partial(_predict, workload, tuple(settings), dict(links), folder)
    return [_one_process(PLAN, plan), *(_contender(workload, setting, folder) for setting in settings)]


def _one_process(name: str, run: Any) -> Contender:
    # Operations of several devices run at once; each uses one thread, as a device with a core of its own does.
    threads = {**clusters.one_thread_each(), "TF_NUM_INTEROP_THREADS": str(2 * _MOST_DEVICES)}
    return Contender(name, run, (threads,))


def _contender(workload: Workload, setting: Setting, folder: str) -> Contender:
    run = functools.partial(_train, workload, setting, folder)
    if setting.processes == 1:
        return _one_process(setting.name, run)
    return clusters.contender(setting.name, run, "tensorflow", setting.processes, clusters.independent)


def _train(workload: Workload, setting: Setting, folder: str, report: Report) -> None:
    """Trains on a mesh, and reports the median seconds of a step."""
    import keras_ext

    with _strategy(setting).scope():
        plain = model = make_model(workload.model)
        if setting.mesh.get("tensor", 1) > 1:
            model = keras_ext.parallelize(model)
        if setting.pipeline:
            model = keras_ext.PipelineModel(model, **setting.pipeline)
    inputs, targets = make_batch(model, workload.batch_size)
    for _ in range(2):
        model.train_on_batch(inputs, targets)
    held = keras_ext.memory_report(model)
    bytes_of_devices = {device: held.together[device] for device in held.together}
    Path(folder, f"{setting.name}.bytes").write_text(str(max(bytes_of_devices.values())))
    if setting.pipeline:
        # The planned memory is that of the same stages: where they begin was decided by times.
        # Names of layers differ from process to process, positions do not.
        names = [layer.name for layer in plain.layers]
        starts = [names.index(stage[0].name) for stage in model.partition.stages[1:]]
        Path(folder, f"{setting.name}.partition").write_text(json.dumps(starts))
    while True:
        seconds = []
        for _ in range(1 + workload.num_steps):
            start = time.perf_counter()
            model.train_on_batch(inputs, targets)
            seconds.append(time.perf_counter() - start)
        # In the first step after a pause processes wait for each other.
        report(statistics.median(seconds[1:]))


def _strategy(setting: Setting) -> Any:
    import strategies

    if setting.processes > 1:
        return strategies.MultiWorkerMirroredStrategy(mesh=dict(setting.mesh), shard=setting.shard)
    _make_devices(setting.num_devices)
    devices = [f"CPU:{index}" for index in range(setting.num_devices)]
    return strategies.MirroredStrategy(devices, mesh=dict(setting.mesh), shard=setting.shard)


def _make_devices(number: int) -> None:
    import tensorflow as tf

    cpu = tf.config.list_physical_devices("CPU")[0]
    tf.config.set_logical_device_configuration(cpu, [tf.config.LogicalDeviceConfiguration()] * number)


def _predict(
    workload: Workload, settings: Sequence[Setting], links: Mapping[str, Any], folder: str, report: Report
) -> None:
    """Predicts all steps in each round, and writes them to a file; reports the seconds that this takes."""
    import keras_ext

    _make_devices(_MOST_DEVICES)
    number = 0
    while True:
        start = time.perf_counter()
        plan = keras_ext.training_plan(
            functools.partial(make_model, workload.model), batch_size=workload.batch_size, num_devices=_MOST_DEVICES
        )
        predicted = {
            setting.name: plan.seconds_of(
                setting.mesh,
                shard=setting.shard,
                links=links if setting.processes > 1 else None,
                **setting.pipeline,
            )
            for setting in settings
        }
        Path(folder, f"predicted_{number}.json").write_text(json.dumps(predicted))
        number += 1
        report(time.perf_counter() - start)
