"""Reports for TensorBoard: the logs, memory by device, a pipeline's timeline, and a profile if asked for."""

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

#: Of this run, the first step that a profile records, when caches are warm, and how many it records.
_FIRST_PROFILED, _NUM_PROFILED = 10, 5


def reports_for(
    model: keras.Model,
    folder: Path,
    batches_from: Callable[[int, int], tf.data.Dataset],
    options: RunOptions,
    num_steps: int,
) -> list[keras.callbacks.Callback]:
    """The callbacks that write for TensorBoard into `folder`; none, and a line that says so, where it is missing.

    Args:
        model: compiled.
        folder: for the logs.
        batches_from: as for `common.training.train`.
        options: whether to profile.
        num_steps: of the next `fit`, in which a profile is made.
    """
    if importlib.util.find_spec("tensorboard") is None:
        _log.info("no logs for TensorBoard: it is not installed (pip install tensorboard)")
        return []
    last = min(num_steps, _FIRST_PROFILED + _NUM_PROFILED - 1)
    profiled = (max(1, last - _NUM_PROFILED + 1), last) if options.profile and num_steps else 0
    reports: list[keras.callbacks.Callback] = [
        keras.callbacks.TensorBoard(str(folder), write_graph=False, profile_batch=profiled),
        DeviceMemory(folder / "devices"),
    ]
    if isinstance(model, keras_ext.PipelineModel):
        measured = options.profile and options.strategy == "mirrored"
        reports.append(PipelinePicture(folder / "devices", batches_from(0, 4) if measured else None))
    return reports


class DeviceMemory(keras.callbacks.Callback):
    """Logs after each epoch how many bytes lie on each device: weights and slots, and on GPUs the peak of all.

    Args:
        folder: for the logs.
    """

    def __init__(self, folder: Path) -> None:
        super().__init__()
        self._writer = tf.summary.create_file_writer(str(folder))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Logs them."""
        report = keras_ext.memory_report(self.model)
        with self._writer.as_default(step=epoch):
            for device in sorted({*report.weights, *report.slots}):
                tf.summary.scalar(f"memory_bytes/{device} weights", report.weights.get(device, 0))
                tf.summary.scalar(f"memory_bytes/{device} optimizer", report.slots.get(device, 0))
                if device.startswith("GPU"):
                    peak = tf.config.experimental.get_memory_info(device)["peak"]
                    tf.summary.scalar(f"memory_bytes/{device} peak", peak)
        self._writer.flush()


class PipelinePicture(keras.callbacks.Callback):
    """Shows once which device computes what, and when it waits.

    Args:
        folder: for the logs.
        batches: steps to measure; None to show what the schedule says.
    """

    def __init__(self, folder: Path, batches: tf.data.Dataset | None) -> None:
        super().__init__()
        self._folder = folder
        self._batches = batches
        self._shown = False

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Shows it, after the first epoch: the step has been traced then."""
        if self._shown:
            return
        self._shown = True
        # Pillow comes with TensorBoard, and neither is needed to train.
        from common.pictures import timeline_image

        model: Any = self.model
        timeline = model.pipeline_timeline(self._batches)
        writer = tf.summary.create_file_writer(str(self._folder))
        with writer.as_default(step=epoch):
            tf.summary.image("pipeline", timeline_image(timeline), description=str(timeline))
        writer.close()
