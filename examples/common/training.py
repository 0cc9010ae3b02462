"""Resumable training: `fit` with checkpoints, the loss curve, TensorBoard logs and throughput."""

from __future__ import annotations

import csv
import io
import logging
import time
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import tensorflow as tf

import keras_ext
from common.files import write_whole
from common.folders import keep_run
from common.options import OptionError, RunOptions
from common.reports import reports_for

_log = logging.getLogger(__name__)

#: The loss curve, in the run folder.
CURVE_FILE = "history.csv"
#: The logs for TensorBoard, in the run folder.
TENSORBOARD_FOLDER = "tensorboard"

#: `batches_from(first_step, num_steps)` returns global batches; steps are counted over all epochs.
BatchesFrom = Callable[[int, int], tf.data.Dataset]


@dataclass(frozen=True)
class Outcome:
    """The outcome of a training run.

    Attributes:
        history: Keras' logs by name, one value for each epoch, including those trained before the run was resumed.
        units_per_second: throughput since this start of the program, without its first step; 0.0 if too few steps were
            run to measure it.
        input_share: fraction of that time in which steps waited for their batch, 0 to 1; None if not measured.
        communication_share: fraction of that time in which steps waited for reductions; None if not measured.
        num_devices: the size of the mesh.
        is_chief: True if this process is the one that prints and writes for all.
        seconds: wall time since this start of the program, validation included.
        unit: the plural name of a unit, as in "images".
        folder: the run folder.
        saved: the files and folders that were saved beside it.
    """

    history: dict[str, list[float]]
    units_per_second: float
    input_share: float | None
    communication_share: float | None
    num_devices: int
    is_chief: bool
    seconds: float
    unit: str
    folder: Path
    saved: tuple[str, ...] = ()

    @property
    def num_epochs(self) -> int:
        """The number of epochs that were trained, in all starts of the program."""
        return max(map(len, self.history.values()), default=0)

    def summary(self) -> str:
        """Returns the end of a result line, which is the same in all examples: rates, epochs, devices and seconds."""
        shares = {"waiting_input": self.input_share, "waiting_communication": self.communication_share}
        waiting = " ".join(f"{name}={0.0 if share is None else share:.3f}" for name, share in shares.items())
        return (
            f"{self.unit}_per_second={self.units_per_second:.0f} {waiting} "
            f"epochs={self.num_epochs} devices={self.num_devices} seconds={self.seconds:.1f}"
        )

    def report(self) -> str:
        """Returns the same for people, in three lines or four: what was trained, how fast, and where the files are."""
        shares = ((self.input_share, "waiting for input"), (self.communication_share, "waiting for other devices"))
        waiting = "".join(f", {share:.1%} of the time {what}" for share, what in shares if share is not None)
        speed = f"{self.units_per_second:,.0f} {self.unit}/s{waiting}"
        files = "checkpoints, history.csv (the loss curve)"
        if (self.folder / TENSORBOARD_FOLDER).is_dir():
            files += f", logs for tensorboard --logdir '{self.folder / TENSORBOARD_FOLDER}'"
        lines = [
            f"trained  {self.num_epochs} epochs on {self.num_devices} device(s); this start took {self.seconds:.1f} s",
            f"speed    {speed if self.units_per_second else 'not measured: too few steps'}",
            f"files    {self.folder}: {files}",
            *([f"saved    {', '.join(self.saved)}"] if self.saved else []),
        ]
        return "\n".join(lines)


def prepare(options: RunOptions) -> None:
    """Sets the seed and the dtype policy; call it before the model is made.

    Raises:
        OptionError: an unknown dtype policy.
    """
    keras.utils.set_random_seed(options.seed)
    try:
        keras.config.set_dtype_policy(options.dtype_policy)
    except ValueError as error:
        raise OptionError(f"--dtype_policy={options.dtype_policy}: {error}") from error


def train(
    model: keras.Model,
    batches_from: BatchesFrom,
    *,
    steps_per_epoch: int,
    epochs: int,
    units_per_step: float,
    unit: str,
    folder: Path,
    options: RunOptions,
    data_digest: str,
    validation_data: tf.data.Dataset | None = None,
    tracks_experts: bool = False,
) -> Outcome:
    """Fits a compiled model, from its last checkpoint in `folder` if there is one.

    Args:
        model: a model compiled under its strategy.
        batches_from: takes the first step and the number of steps, counted over all epochs, and returns that number of
            batches. They must depend on these two numbers only, so that a resumed run gets the same batches.
        steps_per_epoch: number of steps of every epoch.
        epochs: number of epochs of the whole training.
        units_per_step: images or tokens in a batch, on average.
        unit: the plural name of a unit, as in "images".
        folder: the run folder.
        options: interval and form of checkpoints, profile, verbosity.
        data_digest: a digest of the data; all processes must have the same data, and a resumed run those of its start.
        validation_data: evaluated after each epoch.
        tracks_experts: whether `keras_ext.track_expert_load` records the load of layers, for TensorBoard.

    Raises:
        OptionError: `folder` has a run of another model or other data, or the data of this process differ from those of
            rank 0.
    """
    start = time.perf_counter()
    keep_run(folder, options, data_digest, model.distribute_strategy)
    checkpoints = keras_ext.Checkpoints(
        folder / "checkpoints",
        steps_per_epoch,
        every_steps=options.checkpoint_steps,
        sharded=options.checkpoint_form != "whole",
        background=options.checkpoint_form == "background",
    )
    try:
        at = checkpoints.restore(model)
    except ValueError as error:
        raise OptionError(str(error)) from error
    throughput = keras_ext.Throughput(units_per_step, unit=unit)
    is_chief: bool = model.distribute_strategy.is_chief
    # The number of steps of the first `fit` below.
    num_steps = (steps_per_epoch - at.step) if at.step else max(0, epochs - at.epoch) * steps_per_epoch
    every = [
        throughput,
        *reports_for(
            model, folder / TENSORBOARD_FOLDER, batches_from, options, num_steps, tracks_experts=tracks_experts
        ),
        checkpoints,
        *([CurveFile(checkpoints, folder / CURVE_FILE)] if is_chief else []),
    ]
    if at.epoch >= epochs:
        _log.info(
            "already complete after %d epochs: to train again, delete %s or choose another --run_dir", epochs, folder
        )
    elif at != keras_ext.TrainingPosition():
        _log.info("resuming in %s: epoch %d, step %d of %d", folder, at.epoch + 1, at.step, steps_per_epoch)
    else:
        _log.info("writing checkpoints, TensorBoard logs and the loss curve to %s", folder)

    while at.epoch < epochs:
        # Keras starts at an epoch boundary: the rest of an interrupted epoch gets its own `fit`.
        end = at.epoch + 1 if at.step else epochs
        model.fit(
            batches_from(at.epoch * steps_per_epoch + at.step, (end - at.epoch) * steps_per_epoch - at.step),
            steps_per_epoch=steps_per_epoch - at.step,
            initial_epoch=at.epoch,
            epochs=end,
            validation_data=validation_data,
            callbacks=every,
            shuffle=False,  # The batches are in their final order.
            verbose=options.verbose,
        )
        if model.stop_training or end == epochs:
            break
        at = checkpoints.restore(model)
    if is_chief:
        # The run may have been killed between its last checkpoint and the write of the curve.
        write_curve(checkpoints.history, folder / CURVE_FILE)
    return Outcome(
        history=checkpoints.history,
        units_per_second=throughput.units_per_second,
        input_share=throughput.input_share,
        communication_share=throughput.communication_share,
        num_devices=model.distribute_strategy.mesh.size,
        is_chief=is_chief,
        seconds=time.perf_counter() - start,
        unit=unit,
        folder=folder,
    )


class CurveFile(keras.callbacks.Callback):
    """Writes the logs of all epochs as CSV, atomically after each epoch, so that a resumed run repeats no line."""

    def __init__(self, checkpoints: keras_ext.Checkpoints, path: Path) -> None:
        super().__init__()
        self._checkpoints = checkpoints
        self._path = path

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Writes the file."""
        write_curve(self._checkpoints.history, self._path)


def write_curve(history: dict[str, list[float]], path: Path) -> None:
    """Writes logs by name as CSV, one line per epoch."""
    table = io.StringIO(newline="")
    writer = csv.writer(table)
    writer.writerow(["epoch", *history])
    writer.writerows([epoch + 1, *values] for epoch, values in enumerate(zip(*history.values(), strict=True)))
    write_whole(path, table.getvalue())
