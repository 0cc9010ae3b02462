"""Callbacks: rank 0 writes files and prints; all processes take the same decisions.

Logs are bit-equal on all processes, so callbacks that base decisions on them decide alike. Three things remain: the
process that writes logs, the process that restores a backup, and stopping, which a program may also decide by a clock.
"""

from __future__ import annotations

import json
import logging
from collections.abc import Callable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any, Concatenate

import keras
import tensorflow as tf
from keras.src.callbacks import backup_and_restore, callback_list, model_checkpoint

from strategies._keras_hooks import same_models
from strategies._keras_hooks.input_bottleneck import SlowInputWarning
from strategies._keras_hooks.keras_versions import ORBAX_CHECKPOINTS
from strategies._keras_hooks.wrapping import Rest, wrap
from strategies.batches import row_warnings
from strategies.collectives.process_group import ProcessGroup
from strategies.control_plane import Member
from strategies.control_plane.preemption import Preemption
from strategies.control_plane.stragglers import stragglers
from strategies.engine.engine import engine_of
from strategies.engine.metric_variables import MetricVariable
from strategies.replica.splitting import SplitWeight
from strategies.replica.whole_weights import joined
from strategies.saving.driving import drive
from strategies.saving.restoring import load_on_all, state_of, sum_accumulated, variables_of
from strategies.topology.rank_end import PREEMPTED

_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.ProgbarLogger,
)

_logger = logging.getLogger(__name__)

_STOPPED, _PREEMPTED = "stop_training was set", "SIGTERM"


def install() -> None:
    """Wraps the list that calls callbacks, and the callbacks that restore and write files."""
    wrap(callback_list.CallbackList, "__init__", _init, in_step=False)
    wrap(callback_list.CallbackList, "on_train_begin", _on_train_begin, in_step=False)
    wrap(callback_list.CallbackList, "on_epoch_begin", _on_epoch_begin, in_step=False)
    wrap(callback_list.CallbackList, "on_epoch_end", _on_epoch_end, in_step=False)
    wrap(callback_list.CallbackList, "on_train_batch_end", _on_train_batch_end, in_step=False)
    for name in ("on_test_batch_end", "on_predict_batch_end"):
        wrap(callback_list.CallbackList, name, _on_batch_end, in_step=False)
    wrap(backup_and_restore.BackupAndRestore, "on_train_begin", _restore, in_step=False)
    for name in ("_save_model", "on_train_end"):
        wrap(backup_and_restore.BackupAndRestore, name, _by_rank_0, in_step=False)
    wrap(model_checkpoint.ModelCheckpoint, "_save_model", _by_all, in_step=False)
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


def _process_group(model: keras.Model | None) -> ProcessGroup | None:
    engine = None if model is None else engine_of(model.distribute_strategy)
    return None if engine is None else engine.process_group


def _save_tree(original: Callable[..., None], callback: Any, *args: Any, **kwargs: Any) -> None:
    """Writes the state tree on rank 0 only: Orbax does not know of other processes, and all have the same folder."""
    model = callback.model
    engine = engine_of(model.distribute_strategy)
    if engine is None or engine.process_group is None:
        original(callback, *args, **kwargs)
        return
    totals = [each.value for each in model.metrics_variables if isinstance(each.value, MetricVariable)]
    with engine.metric_totals(totals):
        drive(engine, variables_of(model), lambda: original(callback, *args, **kwargs))


def _init(
    original: Callable[..., None], owner: callback_list.CallbackList, callbacks: Any = None, *args: Any, **kwargs: Any
) -> None:
    model = kwargs.get("model")
    process_group = _process_group(model)
    _check(model, keras.tree.flatten(callbacks or []))
    if process_group is not None and process_group.rank > 0:
        # Done before callbacks get the model, because some open their files then.
        callbacks = [each for each in keras.tree.flatten(callbacks or []) if not isinstance(each, _WRITERS)]
        kwargs["add_progbar"] = False
        for callback in callbacks:
            if getattr(callback, "verbose", 0):
                callback.verbose = 0
    elif model is not None and engine_of(model.distribute_strategy) is not None:
        callbacks = [*keras.tree.flatten(callbacks or []), SlowInputWarning()]
    original(owner, callbacks, *args, **kwargs)


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


def _member(callbacks: callback_list.CallbackList) -> Member | None:
    model = getattr(callbacks, "model", None)
    engine = None if model is None else engine_of(model.distribute_strategy)
    return None if engine is None else engine.member


def _on_train_begin(original: Callable[..., None], callbacks: callback_list.CallbackList, *args: Any) -> None:
    member = _member(callbacks)
    if member is not None and member.stops is not None:
        member.stops.begin()
    original(callbacks, *args)


def _on_epoch_begin(
    original: Callable[..., None], callbacks: callback_list.CallbackList, epoch: int, *args: Any
) -> None:
    member = _member(callbacks)
    if member is not None:
        member.position = replace(member.position, epoch=epoch + 1, step=0)
    original(callbacks, epoch, *args)


def _on_batch_end(original: Callable[..., None], callbacks: callback_list.CallbackList, batch: int, *args: Any) -> None:
    member = _member(callbacks)
    if member is not None:
        member.position = replace(member.position, step=batch + 1)
    original(callbacks, batch, *args)


def _on_train_batch_end(
    original: Callable[..., None], callbacks: callback_list.CallbackList, batch: int, *args: Any
) -> None:
    """Stops all processes after the same step if one of them wants to stop."""
    _on_batch_end(original, callbacks, batch, *args)
    member = _member(callbacks)
    if member is None:
        return
    model, preemption = callbacks.model, member.preemption
    reason = _PREEMPTED if preemption.is_asked else _STOPPED if model.stop_training else ""
    agreed = reason if member.stops is None else member.stops.after_step(reason)
    model.stop_training = bool(agreed)
    if agreed == _PREEMPTED and preemption.saver is not None:
        try:
            preemption.saver(batch + 1)
        except SystemExit:
            # Other processes may need this one until they have written.
            member.barrier("end after a checkpoint")
            raise


def _on_epoch_end(
    original: Callable[..., None],
    callbacks: callback_list.CallbackList,
    epoch: int,
    logs: Mapping[str, float] | None = None,
) -> None:
    model = getattr(callbacks, "model", None)
    process_group = _process_group(model)
    if model is None or process_group is None:
        original(callbacks, epoch, logs)
        alone = _member(callbacks)
        if alone is not None and alone.preemption.is_asked:
            _end_if_saved(alone.preemption, epoch, is_chief=True)
        return
    # Callbacks on rank 0 alone may save in the next call, and the program may after `fit`.
    sum_accumulated(getattr(model, "optimizer", None))
    original(callbacks, epoch, logs)
    # All processes stop, or end, if one of them stops or was asked to end.
    weights = same_models.replicated_weights(model)
    what = f"the weights of the model {model.name!r}, at the end of epoch {epoch + 1}"
    member = callbacks.model.distribute_strategy.extended.engine.member
    mine = (int(bool(model.stop_training)), int(member.preemption.is_asked), *member.shares.taken())
    by_rank = same_models.gathered_with_checksums(weights, process_group, what, *mine)
    model.stop_training = any(wants for wants, *_ in by_rank)
    if any(is_asked for _, is_asked, *_ in by_rank):
        _end_if_saved(member.preemption, epoch, is_chief=process_group.rank == 0)
    slow = stragglers([looks for _, _, *looks in by_rank])
    if slow is not None and process_group.rank == 0:
        _logger.warning("In epoch %d %s", epoch + 1, slow)


def _end_if_saved(preemption: Preemption, epoch: int, *, is_chief: bool) -> None:
    """Exits after the epoch's checkpoint, if a saver is registered; called if this rank or a peer received SIGTERM."""
    if preemption.saver is None:
        return
    if is_chief:
        _logger.warning("Preempted: saved after epoch %d; run the same command to resume.", epoch + 1)
    raise SystemExit(PREEMPTED)


def _restore(
    original: Callable[..., None], callback: keras.callbacks.Callback, logs: Mapping[str, float] | None = None
) -> None:
    """Reads the backup on rank 0, which sends the epoch to the others: their machines need not have the file."""
    model = callback.model
    process_group = _process_group(model)
    if process_group is None:
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
    engine = engine_of(callback.model.distribute_strategy)
    if engine is None or engine.process_group is None:
        original(callback, *args, **kwargs)
        return
    sum_accumulated(callback.model.optimizer)
    drive(engine, variables_of(callback.model), lambda: original(callback, *args, **kwargs))


def _by_all(
    original: Callable[Concatenate[keras.callbacks.Callback, Rest], None],
    callback: keras.callbacks.Callback,
    *args: Rest.args,
    **kwargs: Rest.kwargs,
) -> None:
    if _process_group(callback.model) is not None:
        sum_accumulated(callback.model.optimizer)
    original(callback, *args, **kwargs)
