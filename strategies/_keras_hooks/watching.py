"""Notes progress, rows of a batch and saves of Keras' training for those who watch the job, if anybody does."""

from __future__ import annotations

import functools
from collections.abc import Callable
from typing import Any

import tensorflow as tf

from strategies import monitoring
from strategies._keras_hooks.addresses import TFEpochIterator

# Stages after which batches have other numbers of rows than the batch stage before them.
_REBATCH = ("_UnbatchDataset", "_FlatMapDataset", "_FilterDataset", "_RebatchDataset", "_WindowDataset")


def note_batches(iterator: TFEpochIterator, data: Any) -> None:
    """Notes the rows of the global batches that an epoch iterator draws, if they are known before.

    Args:
        iterator: the epoch iterator.
        data: what it was made of.
    """
    reporter = monitoring.reporter()
    if reporter is not None:
        rows = iterator.data_adapter.batch_size
        reporter.progress.rows_of_next = _rows_of_batches(data) if rows is None else int(rows)


def note_begin(params: dict[str, Any]) -> None:
    """Notes that `fit` begins, with the parameters that Keras gives to callbacks."""
    reporter = monitoring.reporter()
    if reporter is not None:
        steps = params.get("steps")
        reporter.progress.begin(int(params.get("epochs") or 0), None if steps is None else int(steps))


def note_epoch(epoch: int) -> None:
    """Notes that an epoch begins, counted from 0."""
    reporter = monitoring.reporter()
    if reporter is not None:
        reporter.progress.begin_epoch(epoch + 1)


def note_step(step: int) -> None:
    """Notes the number of finished steps of the epoch."""
    reporter = monitoring.reporter()
    if reporter is not None:
        reporter.progress.note_step(step)


def note_end() -> None:
    """Notes that `fit` has ended."""
    reporter = monitoring.reporter()
    if reporter is not None:
        reporter.progress.end()


def note_save(path: object) -> None:
    """Notes that a model, or a checkpoint of it, was saved."""
    reporter = monitoring.reporter()
    if reporter is not None:
        reporter.note_checkpoint(str(path))


def begin_save(path: object) -> Callable[[], None]:
    """Returns a function that notes a save of the state of this moment, to be called once it is complete."""
    reporter = monitoring.reporter()
    if reporter is None:
        return lambda: None
    return functools.partial(reporter.note_checkpoint, str(path), reporter.progress.total_steps)


def note_units(units_per_step: float, unit: str) -> None:
    """Notes the number of units of a global batch, and their name in the plural, to be shown in place of rows."""
    reporter = monitoring.reporter()
    if reporter is not None:
        reporter.progress.units_per_step, reporter.progress.unit = units_per_step, unit


def _rows_of_batches(data: Any) -> int | None:
    """Returns the rows of a dataset's batches; None for other data, or if no stage says it."""
    while isinstance(data, tf.data.Dataset) and type(data).__name__ not in _REBATCH:
        size = tf.get_static_value(getattr(data, "_batch_size", None))
        if size is not None:
            return int(size)
        inputs = data._inputs()
        if len(inputs) != 1:
            return None
        [data] = inputs
    return None
