"""TensorBoard output: logs, memory per device, a pipeline's timeline, and an optional profile."""

from __future__ import annotations

import importlib.util
import logging
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import keras_ext
from common.options import RunOptions

_log = logging.getLogger(__name__)

#: The first profiled step since the start of the program, when caches are warm, and the number of profiled steps.
_FIRST_PROFILED, _NUM_PROFILED = 10, 5


def reports_for(
    model: keras.Model,
    folder: Path,
    batches_from: Callable[[int, int], tf.data.Dataset],
    options: RunOptions,
    num_steps: int,
    *,
    tracks_experts: bool = False,
) -> list[keras.callbacks.Callback]:
    """Returns the callbacks that write TensorBoard logs to `folder`; without TensorBoard, it logs that and none writes.

    Every process needs its callbacks, because some reports are collective; only rank 0 writes.

    Args:
        model: a compiled model.
        folder: folder of the logs.
        batches_from: see `common.training.train`.
        options: `profile` asks for a profile.
        num_steps: number of steps of the next `fit`, which is the one profiled.
        tracks_experts: whether `keras_ext.track_expert_load` records the load of layers of the model.
    """
    writes: bool = model.distribute_strategy.is_chief
    if writes and importlib.util.find_spec("tensorboard") is None:
        _log.info("no TensorBoard logs: tensorboard is not installed (pip install tensorboard)")
        writes = False
    devices = folder / "devices" if writes else None
    last = min(num_steps, _FIRST_PROFILED + _NUM_PROFILED - 1)
    profiled = (max(1, last - _NUM_PROFILED + 1), last) if options.profile and num_steps else 0
    reports: list[keras.callbacks.Callback] = []
    board = None
    if writes:
        board = keras.callbacks.TensorBoard(str(folder), write_graph=False, profile_batch=profiled)
        reports.append(board)
    if tracks_experts:
        reports.append(keras_ext.ExpertLoadHistory(board))
    reports.append(DeviceMemory(devices))
    if isinstance(model, keras_ext.PipelineModel):
        measured = options.profile and options.strategy == "mirrored"
        reports.append(PipelinePicture(devices, batches_from(0, 4) if measured else None))
    return reports


class DeviceMemory(keras.callbacks.Callback):
    """Logs the bytes of weights and optimizer slots on each device after each epoch, and on GPUs the memory peak.

    Args:
        folder: folder of the logs; None for a process that only takes part in the collective report.
    """

    def __init__(self, folder: Path | None) -> None:
        super().__init__()
        self._writer = None if folder is None else tf.summary.create_file_writer(str(folder))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the scalars of this epoch."""
        report = keras_ext.memory_report(self.model)
        if self._writer is None:
            return
        with self._writer.as_default(step=epoch):
            for device in sorted({*report.weights, *report.slots}):
                tf.summary.scalar(f"memory_bytes/{device} weights", report.weights.get(device, 0))
                tf.summary.scalar(f"memory_bytes/{device} optimizer", report.slots.get(device, 0))
            for device, peak in report.peaks.items():
                tf.summary.scalar(f"memory_bytes/{device} peak", peak)
        self._writer.flush()


class PipelinePicture(keras.callbacks.Callback):
    """Writes a pipeline's timeline once, as an image.

    Args:
        folder: folder of the logs; None for a process that only takes part in the measured steps.
        batches: batches of the steps to measure; None to draw the schedule without measuring.
    """

    def __init__(self, folder: Path | None, batches: tf.data.Dataset | None) -> None:
        super().__init__()
        self._folder = folder
        self._batches = batches
        self._shown = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the image after the first epoch, when the step has been traced."""
        if self._shown:
            return
        self._shown = True
        model: Any = self.model
        timeline = model.pipeline_timeline(self._batches)
        if self._folder is None:
            return
        # Pillow is a dependency of TensorBoard; training needs neither.
        from common.pictures import timeline_image

        writer = tf.summary.create_file_writer(str(self._folder))
        with writer.as_default(step=epoch):
            tf.summary.image("pipeline", timeline_image(timeline), description=str(timeline))
        writer.close()
