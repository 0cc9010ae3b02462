"""Callbacks of ours, first and last in every list of callbacks, through which all processes of a job decide alike.

The first tells the job where this process is. After all others have run at the end of a step or an epoch, the last
stops, or ends, all processes if one of them wants to. How several processes do so is tested in
`tests/strategies/processes/suite_files.py` and `tests/strategies/faults`.
"""

from __future__ import annotations

import logging
from collections.abc import Mapping
from dataclasses import replace

import keras

from strategies._keras_hooks import agreement, watching
from strategies._keras_hooks.finished_steps import finished_steps
from strategies._keras_hooks.fit_exits import at_exit_of_fit
from strategies.control_plane import Member
from strategies.control_plane.preemption import Preemption
from strategies.control_plane.stragglers import stragglers
from strategies.engine.engine import engine_of, engine_of_processes
from strategies.saving.restoring import sum_accumulated
from strategies.topology.rank_end import PREEMPTED

_logger = logging.getLogger(__name__)

_STOPPED, _PREEMPTED = "stop_training was set", "SIGTERM"


def member(model: keras.Model | None) -> Member | None:
    """Returns this process as a member of the job that trains a model; None if the strategy is not one of ours."""
    engine = None if model is None else engine_of(model.distribute_strategy)
    return None if engine is None else engine.member


class FirstCallback(keras.callbacks.Callback):
    """Comes before all other callbacks."""

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Notes that a training begins, in which all processes stop after the same step."""
        watching.note_begin(self.params or {})
        at_exit_of_fit(watching.note_end)
        here = member(self.model)
        if here is not None and here.stops is not None:
            here.stops.begin()

    def on_epoch_begin(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Notes the epoch, for messages and for those who watch the job."""
        watching.note_epoch(epoch)
        here = member(self.model)
        if here is not None:
            here.position = replace(here.position, epoch=epoch + 1, step=0)

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Notes the step, before other callbacks save."""
        watching.note_step(finished_steps(self.params, batch))

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Sums accumulated gradients: callbacks on rank 0 alone may save next, and the program may after `fit`."""
        if engine_of_processes(self.model.distribute_strategy) is not None:
            sum_accumulated(getattr(self.model, "optimizer", None))


class LastCallback(keras.callbacks.Callback):
    """Comes after all other callbacks.

    Keras calls it on the thread that trains: with TensorFlow it never calls callbacks from others.
    """

    def on_train_batch_end(self, batch: int, logs: Mapping[str, float] | None = None) -> None:
        """Stops all processes after the same step if one of them wants to stop."""
        here = member(self.model)
        if here is None:
            return
        preemption = here.preemption
        reason = _PREEMPTED if preemption.is_asked else _STOPPED if self.model.stop_training else ""
        agreed = reason if here.stops is None else here.stops.after_step(reason)
        self.model.stop_training = bool(agreed)
        if agreed == _PREEMPTED and preemption.saver is not None:
            try:
                preemption.saver(finished_steps(self.params, batch))
            except SystemExit:
                # Other processes may need this one until they have written.
                here.barrier("end after a checkpoint")
                raise

    def on_epoch_end(self, epoch: int, logs: Mapping[str, float] | None = None) -> None:
        """Stops, or ends, all processes if one of them stops or was asked to end."""
        model, engine = self.model, engine_of(self.model.distribute_strategy)
        if engine is None:
            return
        here = engine.member
        if engine.agreement is None:
            if here.preemption.is_asked:
                _end_if_saved(here.preemption, epoch, is_chief=True)
            return
        weights = agreement.replicated_weights(model)
        what = f"the weights of the model {model.name!r}, at the end of epoch {epoch + 1}"
        mine = (int(bool(model.stop_training)), int(here.preemption.is_asked), *here.shares.taken())
        by_rank = agreement.gathered_with_checksums(weights, engine.agreement, what, *mine)
        model.stop_training = any(wants for wants, *_ in by_rank)
        if any(is_asked for _, is_asked, *_ in by_rank):
            _end_if_saved(here.preemption, epoch, is_chief=engine.should_checkpoint)
        slow = stragglers([looks for _, _, *looks in by_rank])
        if slow is not None and engine.should_checkpoint:
            _logger.warning("In epoch %d %s", epoch + 1, slow)


def _end_if_saved(preemption: Preemption, epoch: int, *, is_chief: bool) -> None:
    """Exits after the epoch's checkpoint, if a saver is registered; called if this rank or a peer received SIGTERM."""
    if preemption.saver is None:
        return
    if is_chief:
        _logger.warning("Preempted: saved after epoch %d; run the same command to resume.", epoch + 1)
    raise SystemExit(PREEMPTED)
