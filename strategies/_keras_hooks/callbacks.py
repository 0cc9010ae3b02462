"""Callbacks: rank 0 writes files and prints; all processes take the same decisions.

Logs are bit-equal on all processes, so callbacks that base decisions on them decide alike. Three things remain: the
process that writes logs, the process that restores a backup, and stopping, which a program may also decide by a clock.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any, Concatenate

import keras
import tensorflow as tf
from keras.src.callbacks import backup_and_restore, callback_list, model_checkpoint

from strategies._keras_hooks.input_bottleneck import SlowInputWarning
from strategies._keras_hooks.job_callbacks import FirstCallback, LastCallback, process_group
from strategies._keras_hooks.keras_versions import ORBAX_CHECKPOINTS
from strategies._keras_hooks.wrapping import Rest, wrap
from strategies.batches import row_warnings
from strategies.engine.engine import engine_of, engine_of_processes
from strategies.engine.metric_variables import MetricVariable
from strategies.replica.splitting import SplitWeight
from strategies.replica.whole_weights import joined
from strategies.saving.driving import drive
from strategies.saving.restoring import load_on_all, state_of, sum_accumulated, variables_of

_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.ProgbarLogger,
)

_logger = logging.getLogger(__name__)


def install() -> None:
    """Wraps the list that calls callbacks, and the callbacks that restore and write files."""
    wrap(callback_list.CallbackList, "set_model", _set_model, in_step=False)
    wrap(backup_and_restore.BackupAndRestore, "on_train_begin", _restore, in_step=False)
    for name in ("_save_model", "on_train_end"):
        wrap(backup_and_restore.BackupAndRestore, name, _by_rank_0, in_step=False)
    wrap(model_checkpoint.ModelCheckpoint, "_save_model", _save_by_all, in_step=False)
    for cls in ORBAX_CHECKPOINTS:
        wrap(cls, "_save_checkpoint", _save_tree, in_step=False)


def write_scalars(board: Any, values: Mapping[str, float], step: int, *, of_validation: bool = False) -> None:
    """Writes scalars by their names into the event file of training, or of validation.

    A second event file in the same folder would not do: TensorBoard moves on to the next file of a run when one exists,
    and does not return to the one before.

    Args:
        board: a ``keras.callbacks.TensorBoard`` of a `fit` that is running.
        values: the scalars.
        step: the step of all scalars.
        of_validation: whether to write to the event file of validation.
    """
    # These properties open the file on first access.
    writer = board._val_writer if of_validation else board._train_writer
    # With an integer `update_freq`, the callback turns recording off between its own steps.
    with writer.as_default(), tf.summary.record_if(True):
        for name, value in values.items():
            tf.summary.scalar(name, value, step=step)


def _save_tree(original: Callable[..., None], callback: Any, *args: Any, **kwargs: Any) -> None:
    """Writes the state tree on rank 0 only: Orbax does not know of other processes, and all have the same folder."""
    model = callback.model
    engine = engine_of_processes(model.distribute_strategy)
    if engine is None:
        original(callback, *args, **kwargs)
        return
    totals = [each.value for each in model.metrics_variables if isinstance(each.value, MetricVariable)]
    with engine.metric_totals(totals):
        drive(engine, variables_of(model), lambda: original(callback, *args, **kwargs))


def _set_model(
    original: Callable[..., None], owner: callback_list.CallbackList, model: keras.Model | None, *args: Any
) -> None:
    """Adds our callbacks, and on ranks other than 0 removes those that write, before any callback gets the model.

    Some callbacks open their files when they get it. Every list comes here, those of users' own loops too.
    """
    engine = None if model is None else engine_of(model.distribute_strategy)
    if engine is not None and not any(isinstance(each, FirstCallback) for each in owner.callbacks):
        _check(model, owner.callbacks)
        others = list(owner.callbacks)
        if engine.should_checkpoint:
            others.append(SlowInputWarning())
        else:
            others = [each for each in others if not isinstance(each, _WRITERS)]
            for callback in others:
                if getattr(callback, "verbose", 0):
                    callback.verbose = 0
        owner.callbacks = [FirstCallback(), *others, LastCallback()]
    original(owner, model, *args)


def _check(model: keras.Model | None, callbacks: list[Any]) -> None:
    """Refuses on all ranks callbacks that need weights of other processes; warns of histograms of shards."""
    engine = None if model is None else engine_of(model.distribute_strategy)
    swapping = next((each for each in callbacks if isinstance(each, keras.callbacks.SwapEMAWeights)), None)
    if engine is not None and engine.sharded_updates is not None and swapping is not None:
        raise ValueError(
            "SwapEMAWeights exchanges weights and averages, which shard= distributes over devices. Use the optimizer's "
            f"ema_overwrite_frequency. Received: {type(swapping).__name__}(swap_on_epoch={swapping.swap_on_epoch})."
        )
    if engine is None:
        return
    if not engine.parts.spans_processes:
        _warn_of_histograms(model, callbacks)
        return
    for callback in callbacks:
        if isinstance(callback, keras.callbacks.TensorBoard) and callback.histogram_freq:
            raise ValueError(
                "Histograms of weights need all weights in the process that writes them, and here a replica spans "
                f"processes: use TensorBoard(histogram_freq=0). Received: histogram_freq={callback.histogram_freq}."
            )
        if isinstance(callback, keras.callbacks.SwapEMAWeights):
            raise ValueError(
                "SwapEMAWeights exchanges weights and averages, some of which other processes hold, as a replica spans "
                "processes. Use the optimizer's ema_overwrite_frequency. Received: "
                f"{type(callback).__name__}(swap_on_epoch={callback.swap_on_epoch})."
            )


def _warn_of_histograms(model: Any, callbacks: list[Any]) -> None:
    draws = any(isinstance(each, keras.callbacks.TensorBoard) and each.histogram_freq for each in callbacks)
    if draws and any(isinstance(weight, SplitWeight) for weight in joined(model.weights, only_split=True)):
        row_warnings.warn(
            "TensorBoard(histogram_freq=...) draws each shard of a weight that is split over the devices of a replica, "
            "under the names of shards such as kernel_0, where one device draws the weight",
            "Write histograms of whole weights in a callback of your own, of numpy.asarray(layer.kernel).",
        )


def _restore(
    original: Callable[..., None], callback: keras.callbacks.Callback, logs: Mapping[str, float] | None = None
) -> None:
    """Reads the backup on rank 0, which sends the epoch to the others: their machines need not have the file."""
    model = callback.model
    if process_group(model) is None:
        original(callback, logs)
        if engine_of(model.distribute_strategy) is not None:
            _warn_if_within_an_epoch(callback)
        return
    model._initial_epoch = 0

    def load() -> str:
        original(callback, logs)
        _warn_if_within_an_epoch(callback)
        return str(model._initial_epoch)

    model._initial_epoch = int(load_on_all(model.distribute_strategy, load, state_of(model)))


def _warn_if_within_an_epoch(callback: Any) -> None:
    """Logs that steps are repeated, as on one device: Keras cannot begin within an epoch."""
    metadata = Path(callback.backup_dir) / "training_metadata.json"
    if callback.save_freq == "epoch" or not metadata.exists():
        return
    position = json.loads(metadata.read_text())
    _logger.warning(
        "BackupAndRestore(save_freq=%r) resumes with the weights of step %d of epoch %d, at the first step of that "
        "epoch, as Keras does on one device: these steps are taken twice. keras_ext.Checkpoints(..., every_steps=%r) "
        "resumes at the next step.",
        callback.save_freq,
        position["batch"] + 1,
        position["epoch"] + 1,
        callback.save_freq,
    )


def _by_rank_0(
    original: Callable[Concatenate[keras.callbacks.Callback, Rest], None],
    callback: keras.callbacks.Callback,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> None:
    engine = engine_of_processes(callback.model.distribute_strategy)
    if engine is None:
        original(callback, *args, **kwargs)
        return
    sum_accumulated(callback.model.optimizer)
    drive(engine, variables_of(callback.model), lambda: original(callback, *args, **kwargs))


def _save_by_all(
    original: Callable[..., None], callback: Any, epoch: int, batch: int | None, logs: Mapping[str, float] | None
) -> None:
    engine = engine_of(callback.model.distribute_strategy)
    path = str(callback._get_file_path(epoch, batch, logs))
    if engine is not None and "://" not in path:
        # Keras makes the folder on all ranks, and fails where another one makes it after its check.
        Path(path).parent.mkdir(parents=True, exist_ok=True)
    if engine is not None and engine.num_processes > 1:
        sum_accumulated(callback.model.optimizer)
    original(callback, epoch, batch, logs)
