"""Additional scalars in the event files of a ``keras.callbacks.TensorBoard``.

A second event file in the same folder would not work: TensorBoard moves on to the next file of a run when one exists,
and does not return to the previous file.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


def write_scalars(board: Any, values: Mapping[str, float], step: int, *, of_validation: bool = False) -> None:
    """Writes scalars by their names into the event file of training, or of validation.

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
