"""A contender in its process: traces a few training steps under a strategy."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import tensorflow as tf
from data_parallel import training
from harness.workers import Report
from mirrored import models
from mirrored.workload import Workload

from overlap import intervals, traces

_NUM_TRACED = 4


class _Tracer(keras.callbacks.Callback):
    """Traces `_NUM_TRACED` steps after the first `num_skipped`."""

    def __init__(self, name: str, num_skipped: int, folder: Path) -> None:
        super().__init__()
        self._name, self._num_skipped, self._folder = name, num_skipped, folder

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if batch == self._num_skipped:
            if self._name == "horovod":
                import horovod.tensorflow as hvd

                hvd.start_timeline(str(self._folder / "timeline.json"))
            tf.profiler.experimental.start(str(self._folder))

    def on_train_batch_end(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        if batch == self._num_skipped + _NUM_TRACED - 1:
            tf.profiler.experimental.stop()
            if self._name == "horovod":
                import horovod.tensorflow as hvd

                hvd.stop_timeline()


def run(name: str, workload: Workload, folder: Path, report: Report) -> None:
    """Trains some steps; rank 0 writes its trace's overlap to `folder`, as text."""
    tf.get_logger().setLevel("ERROR")
    strategy = training.make_strategy(name)
    if strategy is None:
        raise ValueError(f"Expected a contender that joins processes. Received: {name!r}.")
    keras.utils.set_random_seed(0)
    with strategy.scope():
        model = models.compiled_model(models.MODELS[workload.model])
    first = strategy.is_chief
    model.fit(
        training.dataset(workload, strategy.num_replicas_in_sync, autotune=True),
        steps_per_epoch=workload.num_skipped + _NUM_TRACED + 1,
        callbacks=[_Tracer(name, workload.num_skipped, folder)] if first else [],
        verbose=0,
        shuffle=False,
    )
    if first:
        whole, backward, reductions = traces.tensorflow_profile(folder)
        if name == "horovod":
            reductions = traces.horovod_timeline(folder / "timeline.json")
        (folder / "seen.txt").write_text(_describe(intervals.steps(whole, backward, reductions)))
    report(0.0)


def _describe(steps: tuple[intervals.Step, ...]) -> str:
    if not steps:
        raise RuntimeError("The trace contains no complete step.")
    middle = sorted(steps, key=lambda step: step.share_hidden)[len(steps) // 2]
    return (
        f"{len(middle.reductions)} all-reduces, {middle.share_started:.0%} of them started before the last op of the "
        f"backward pass; {middle.share_hidden:.0%} of the time with one under way, the backward pass was running\n\n"
        f"{intervals.chart(middle)}\n"
    )
