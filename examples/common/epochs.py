"""Training in epochs that use each row of a data set once, and saving: for examples whose data fit in memory."""

from __future__ import annotations

import dataclasses
import hashlib
import math
from collections.abc import Callable, Iterable
from pathlib import Path
from typing import Any

import numpy as np
import tensorflow as tf

from common.options import EpochOptions
from common.training import Outcome, train


def steps_per_epoch(num_rows: int, options: EpochOptions) -> int:
    """Returns the number of batches in an epoch; the last one may be smaller."""
    return math.ceil(num_rows / options.batch_size)


def train_and_save(
    model: Any,
    rows: Any,
    num_rows: int,
    *,
    training_batches: Callable[..., tf.data.Dataset],
    validation_data: tf.data.Dataset,
    unit: str,
    folder: Path,
    options: EpochOptions,
    data_digest: str,
) -> Outcome:
    """Fits a compiled model, from its last checkpoint in `folder` if there is one, and saves it if `options` say so.

    Args:
        model: a model compiled under its strategy.
        rows: the training rows.
        num_rows: the number of training rows.
        training_batches: takes `rows`, the batch size, and by name `seed`, `first_step` and `num_steps`; see
            `batches_from` of `common.training.train`.
        validation_data: evaluated after each epoch.
        unit: the plural name of a row, as in "images".
        folder: the run folder.
        options: the options of the run.
        data_digest: see `common.training.train`.

    Raises:
        OptionError: see `common.training.train`.
    """
    steps = steps_per_epoch(num_rows, options)
    outcome = train(
        model,
        lambda first_step, num_steps: training_batches(
            rows, options.batch_size, seed=options.seed, first_step=first_step, num_steps=num_steps
        ),
        steps_per_epoch=steps,
        epochs=options.epochs,
        # A mean: the last batch of an epoch may be smaller.
        units_per_step=num_rows / steps,
        unit=unit,
        folder=folder,
        options=options,
        data_digest=data_digest,
        validation_data=validation_data,
    )
    if options.save is not None:
        model.save(options.save)  # All processes call it, one writes.
        outcome = dataclasses.replace(outcome, saved=(options.save,))
    return outcome


def digest_of(arrays: Iterable[np.ndarray]) -> str:
    """Returns a digest of the values of arrays."""
    digest = hashlib.sha256()
    for array in arrays:
        digest.update(array.tobytes())
    return digest.hexdigest()
