"""The position of a training run: its progress, or the point where it resumes."""

from __future__ import annotations

from dataclasses import dataclass


@dataclass(frozen=True)
class TrainingPosition:
    """The progress of training.

    Attributes:
        epoch: number of finished epochs.
        step: number of finished steps of the epoch after them.

    Example, a run of 100 steps per epoch that was stopped after step 20 of its third epoch:

        position = keras_ext.TrainingPosition(epoch=2, step=20)
        num_steps = 100 * position.epoch + position.step
    """

    epoch: int = 0
    step: int = 0
