"""Further scalars beside those that a ``keras.callbacks.TensorBoard`` writes, in its own event files.

A second file of events in the same folder would not do: TensorBoard goes on with the next file of a run when there is
one, and does not come back to the one before.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

import tensorflow as tf


def write_scalars(board: Any, values: Mapping[str, float], step: int, *, of_validation: bool = False) -> None:
    """Writes scalars by their names into the event file of training, or of validation.

    Args:
        board: a ``keras.callbacks.TensorBoard`` that `fit` has been given, and that is not at its end.
        values: the scalars.
        step: of all of them.
        of_validation: the second file.
    """
    # Properties, which open the file when they are first asked for.
    writer = board._val_writer if of_validation else board._train_writer
    # With `update_freq` steps, the callback has others recorded only.
    with writer.as_default(), tf.summary.record_if(True):
        for name, value in values.items():
            tf.summary.scalar(name, value, step=step)
