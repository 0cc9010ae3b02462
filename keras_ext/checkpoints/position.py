"""The progress of training: how many epochs and steps have been done, and how many steps an epoch may still have."""

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


def check_length(steps: int, at: TrainingPosition, steps_per_epoch: int) -> None:
    """Refuses an epoch with more steps than it should have.

    Args:
        steps: the number of steps that `fit` has for the epoch, or has begun.
        at: the position at the beginning of `fit`.
        steps_per_epoch: the number of steps of a whole epoch.

    Raises:
        ValueError: there are more steps than a whole epoch has after `at`.
    """
    left = steps_per_epoch - at.step
    if steps <= left:
        return
    received = f"Received: {steps} or more steps in epoch {at.epoch + 1}, and steps_per_epoch={steps_per_epoch}."
    if not at.step:
        raise ValueError(f"Checkpoints expects epochs of the length that it was given. {received}")
    raise ValueError(
        f"This training was stopped after step {at.step} of epoch {at.epoch + 1}. First give fit the other {left} "
        "steps of that epoch, as dataset.skip(position.step), with initial_epoch=position.epoch and "
        f"epochs=position.epoch + 1; then call restore again (keras_ext.Checkpoints has an example). {received}"
    )
