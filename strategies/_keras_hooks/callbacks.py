"""Callbacks: rank 0 writes logs and prints; all processes take the same decisions.

Logs are bit-equal on all processes, so callbacks that base decisions on them decide alike. Three things remain: the
process that writes logs, files of the model (``distributed_callbacks``), and stopping, which a program may also decide
by a clock (``job_callbacks``).
"""

from __future__ import annotations

import logging
from collections.abc import Callable, Mapping
from typing import Any

import keras
import tensorflow as tf

from strategies import monitoring
from strategies._keras_hooks.addresses import CallbackList
from strategies._keras_hooks.distributed_callbacks import distribute
from strategies._keras_hooks.input_bottleneck import SlowInputWarning
from strategies._keras_hooks.job_callbacks import FirstCallback, LastCallback
from strategies._keras_hooks.requested_traces import RequestedTraces
from strategies._keras_hooks.wrapping import wrap
from strategies.batches import row_warnings
from strategies.engine.engine import Engine, engine_of
from strategies.replica.splitting import SplitWeight
from strategies.replica.whole_weights import joined

_WRITERS = (
    keras.callbacks.CSVLogger,
    keras.callbacks.TensorBoard,
    keras.callbacks.RemoteMonitor,
    keras.callbacks.ProgbarLogger,
)

_logger = logging.getLogger(__name__)


def install() -> None:
    """Wraps the list that calls callbacks."""
    wrap(CallbackList, "set_model", _set_model, in_step=False)


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


def _set_model(original: Callable[..., None], owner: CallbackList, model: keras.Model | None, *args: Any) -> None:
    """Adds our callbacks, and on ranks other than 0 removes those that write, before any callback gets the model.

    Some callbacks open their files when they get it. Every list comes here, those of users' own loops too.
    """
    engine = None if model is None else engine_of(model.distribute_strategy)
    if engine is not None and not any(isinstance(each, FirstCallback) for each in owner.callbacks):
        _check(model, engine, owner.callbacks)
        for callback in owner.callbacks:
            distribute(callback)
        others = list(owner.callbacks)
        if engine.should_checkpoint:
            others.append(SlowInputWarning())
        else:
            others = [each for each in others if not isinstance(each, _WRITERS)]
            for callback in others:
                if getattr(callback, "verbose", 0):
                    callback.verbose = 0
        reporter = monitoring.reporter()
        traces = [] if reporter is None else [RequestedTraces(reporter)]
        owner.callbacks = [FirstCallback(), *traces, *others, LastCallback()]
    original(owner, model, *args)


def _check(model: Any, engine: Engine, callbacks: list[Any]) -> None:
    """Refuses on all ranks callbacks that need weights of other processes; warns of histograms of shards."""
    swapping = next((each for each in callbacks if isinstance(each, keras.callbacks.SwapEMAWeights)), None)
    if engine.sharded_updates is not None and swapping is not None:
        raise ValueError(
            "SwapEMAWeights exchanges weights and averages, which shard= distributes over devices. Use the optimizer's "
            f"ema_overwrite_frequency. Received: {type(swapping).__name__}(swap_on_epoch={swapping.swap_on_epoch})."
        )
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
