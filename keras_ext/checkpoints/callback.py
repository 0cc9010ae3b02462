"""Checkpoints from which a killed run resumes as if nothing had happened, also in the middle of an epoch."""

from __future__ import annotations

import functools
import json
import logging
import math
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras
import numpy as np

import strategies
from keras_ext.checkpoints import adapters
from keras_ext.checkpoints import sharded as sharded_checkpoints
from keras_ext.checkpoints.files import CheckpointFiles, load_keras_file
from keras_ext.checkpoints.position import TrainingPosition, check_length
from strategies import layer_api

_logger = logging.getLogger(__name__)


class Checkpoints(keras.callbacks.Callback):
    """Saves the state of training, and resumes from it with the logs of a run that was never killed.

    A checkpoint contains the weights, the optimizer, random seeds of layers, the metrics of an unfinished epoch, the
    position, and the logs of all epochs so far. It counts only once it is complete: a run may be killed at any moment,
    also while it saves. Weights have full shapes, as Keras saves them, so that training may resume under another
    strategy or mesh.

    A process that receives SIGTERM, as from a scheduler that needs the machine, saves after the running step, together
    with all processes of its job, and all end with exit code 75; under a strategy of another package it just ends.

    An epoch that a callback stopped early is not saved: a restored run finishes it. The state of other callbacks, such
    as the best loss so far, is not saved, nor is that of random draws without a seed. Use a schedule for learning
    rates: :class:`LearningRateWarmup` counts only the steps of an epoch that it has seen.

    Keras cannot start in the middle of an epoch, so the program passes the rest of that epoch itself::

        checkpoints = keras_ext.Checkpoints("run/checkpoints", steps_per_epoch=n, every_steps=500)
        at = checkpoints.restore(model)
        if at.step:
            rest = batches_from(epoch=at.epoch, step=at.step)
            model.fit(rest, initial_epoch=at.epoch, epochs=at.epoch + 1, callbacks=[checkpoints])
            at = checkpoints.restore(model)  # With averaged weights, `fit` leaves these behind at its end.
        model.fit(..., initial_epoch=at.epoch, epochs=10, callbacks=[checkpoints])

    It has to be the last callback, after those that add to the logs. With several processes rank 0 reads and writes,
    and all take part. With `sharded`, each process writes its part into a file of its own, in the format of
    safetensors, beside an index with shapes and checksums, and reads its part from all of them; the folder is one that
    all processes share. Both kinds have full shapes, and a run may go on from either.

    Args:
        folder: the folder of the checkpoints; made if it does not exist.
        steps_per_epoch: the number of steps of a whole epoch.
        every_steps: the number of steps after which to save within an epoch, counted from its first step; None to save
            only at its end. Checkpoints are saved between executions of several steps (``steps_per_execution``), but
            not before the last execution.
        num_kept: the number of checkpoints to keep. An older one is used if the last cannot be read.
        sharded: True to have each process write its part of the model and the optimizer.
        background: True, with `sharded`, to train on while files are written. They have what the step had: until they
            are written, each process holds its part, at most once more. A save waits for the one before; errors are
            raised there, or at the end of training.

    Example:

        model = keras.Sequential([keras.Input((3,)), keras.layers.Dense(1)])
        model.compile("adam", "mse")
        checkpoints = keras_ext.Checkpoints("run/checkpoints", steps_per_epoch=4)
        position = checkpoints.restore(model)
        x, y = np.ones((8, 3)), np.ones((8, 1))
        model.fit(x, y, batch_size=2, initial_epoch=position.epoch, epochs=2, callbacks=[checkpoints])

    Raises:
        ValueError: an argument out of range, or `background` without `sharded`.
    """

    def __init__(
        self,
        folder: str | Path,
        steps_per_epoch: int,
        *,
        every_steps: int | None = None,
        num_kept: int = 2,
        sharded: bool = False,
        background: bool = False,
    ) -> None:
        super().__init__()
        if background and not sharded:
            raise ValueError(
                "Only sharded checkpoints are written in the background: pass sharded=True as well. Received: "
                "background=True, sharded=False."
            )
        for name, value in (("steps_per_epoch", steps_per_epoch), ("every_steps", every_steps), ("num_kept", num_kept)):
            if value is not None and (not isinstance(value, int) or value < 1):
                raise ValueError(f"{name} must be a whole number from 1. Received: {name}={value!r}.")
        self._steps_per_epoch = steps_per_epoch
        self._every_steps = every_steps
        self._files = CheckpointFiles(Path(folder), num_kept)
        self._origin = str(folder)
        self._saves = layer_api.ShardedSaves(background) if sharded else None
        self._tensors = sharded_checkpoints.TensorsToSave()
        #: The logs of all finished epochs, by name, including restored ones.
        self.history: dict[str, list[float]] = {}
        self._position = TrainingPosition()
        self._unfinished: list[Any] = []
        self._to_put_back: list[Any] = []
        self._done = 0

    def restore(self, model: keras.Model) -> TrainingPosition:
        """Loads the last checkpoint into a compiled model; returns the position at which to resume, possibly the start.

        Raises:
            ValueError: the checkpoint belongs to another model or optimizer, or has epochs of another length; or none
                of the existing checkpoints can be read.
        """
        if self._saves is not None:
            self._saves.wait(model)
        state = self._load_on_all(model)
        self.history = state.get("history", {})
        self._unfinished = state.get("metrics", [])
        self._position = TrainingPosition(state.get("epoch", 0), state.get("step", 0))
        return self._position

    def on_train_begin(self, logs: dict[str, Any] | None = None) -> None:
        """Registers the saver of a checkpoint on SIGTERM."""
        layer_api.save_before_end(self.model, self._save_and_end)

    def on_train_end(self, logs: dict[str, Any] | None = None) -> None:
        """Unregisters the saver: SIGTERM ends the process at once again; a SIGTERM since the last epoch ends it now."""
        try:
            if self._saves is not None:
                self._saves.wait(self.model)
        finally:
            layer_api.save_before_end(self.model, None)

    def on_epoch_begin(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Restores the metrics of an unfinished epoch that is resumed.

        Raises:
            ValueError: the epoch has more steps than there are left.
        """
        is_resumed = epoch == self._position.epoch
        self._position = self._position if is_resumed else TrainingPosition(epoch)
        check_length(self.params.get("steps") or 0, self._position, self._steps_per_epoch)
        self._done = self._position.step
        self._to_put_back = self._unfinished if is_resumed and self._position.step else []
        if len(self.model.metrics_variables) == len(self._to_put_back):
            self._put_back(keras.ops.zeros_like)

    def on_train_batch_begin(self, batch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves the state after the previous step, if a checkpoint is due.

        ``on_train_batch_end`` is not used: Keras would have to wait for the logs of every step.
        """
        if self._to_put_back and batch:
            # Without one of our strategies, Keras makes the metrics only in the first step. Their variables are sums.
            self._put_back(lambda variable: variable)
        check_length(batch + 1, self._position, self._steps_per_epoch)
        before, self._done = self._done, self._position.step + batch
        every, execution = self._every_steps, self.model.steps_per_execution
        is_last = self._done + execution >= self._steps_per_epoch
        if every and batch and not is_last and self._done // every > before // every:
            self._save(TrainingPosition(self._position.epoch, self._done))

    def on_epoch_end(self, epoch: int, logs: dict[str, Any] | None = None) -> None:
        """Saves a checkpoint with the epoch's logs, unless the epoch ended early."""
        if self._done + self.model.steps_per_execution < self._steps_per_epoch:
            _logger.warning(
                "Epoch %d ended after %d of %d steps: it is not saved as a whole one.",
                epoch + 1,
                self._done + self.model.steps_per_execution,
                self._steps_per_epoch,
            )
            return
        for name in dict.fromkeys([*self.history, *(logs or {})]):
            values = self.history.setdefault(name, [])
            # Some logs are missing in some epochs, as with `validation_freq`.
            values += [math.nan] * (epoch - len(values))
            values.append(float((logs or {}).get(name, math.nan)))
        self._save(TrainingPosition(epoch + 1))

    def _save_and_end(self, num_steps: int) -> None:
        done = self._position.step + num_steps
        if done >= self._steps_per_epoch:
            # Only the epoch's validation is left; the processes end after its checkpoint.
            return
        self._save(TrainingPosition(self._position.epoch, done))
        if self._saves is not None:
            self._saves.wait(self.model)
        if getattr(self.model.distribute_strategy, "is_chief", True):
            _logger.warning(
                "Preempted: saved after step %d of epoch %d; run the same command to resume.",
                done,
                self._position.epoch + 1,
            )
        raise SystemExit(layer_api.PREEMPTED)

    def _put_back(self, counted: Callable[[Any], Any]) -> None:
        """Sets the metrics' variables to their restored values plus what `counted` returns for each variable."""
        variables = self.model.metrics_variables
        if len(variables) != len(self._to_put_back):
            raise ValueError(
                f"The checkpoint has {len(self._to_put_back)} numbers of metrics and the model {len(variables)}: "
                f"compile it with the metrics that it had, or start without {self._origin!r}."
            )
        for variable, value in zip(variables, self._to_put_back, strict=True):
            variable.assign(counted(variable) + np.asarray(value, variable.dtype).reshape(variable.shape))
        self._to_put_back = []

    def _state_at(self, position: TrainingPosition) -> dict[str, Any]:
        """Returns the state to save in addition to the weights. All processes call it, as each may own a part."""
        model = self.model
        strategies.sum_accumulated(model.optimizer)
        counted = model.metrics_variables if position.step else []
        values = [value.tolist() for value in layer_api.values_of(model, [*counted, *seeds_of(model)])]
        return {
            "epoch": position.epoch,
            "step": position.step,
            "steps_per_epoch": self._steps_per_epoch,
            "metrics": values[: len(counted)],
            "seeds": values[len(counted) :],
            "history": self.history,
        }

    def _save(self, position: TrainingPosition) -> None:
        model = self.model
        state = self._state_at(position)
        name = f"step-{position.epoch * self._steps_per_epoch + position.step:09d}"
        if self._saves is not None:
            # The logs go on while the files are written.
            state = {**state, "sharded": True, "history": {key: list(own) for key, own in self.history.items()}}

            # The training may be steps ahead when it is complete.
            note_save = layer_api.begin_save(self._files.shards(name))

            def complete() -> None:
                self._files.finish(name, state)
                note_save()

            self._saves.save(
                model,
                self._files.shards(name),
                lambda: self._tensors.find(model),
                lambda: self._files.begin_shards(name),
                complete,
            )
            return
        of_adapters = layer_api.values_of(model, layer_api.adapters_in(model))
        # Without a strategy, or with one that has no `is_chief`, the job is taken for a single process.
        writes = getattr(model.distribute_strategy, "is_chief", True)

        def write() -> None:
            if writes:
                self._files.begin(name)
            with layer_api.kernels_apart(model):
                model.save_weights(str(self._files.weights(name)), overwrite=True)
            if writes:
                adapters.write(self._files.adapters(name), of_adapters)
                self._files.finish(name, state)

        layer_api.write_together(model, write)

    def _load_on_all(self, model: keras.Model) -> dict[str, Any]:
        """Loads the newest checkpoint that can be read; returns its state, or {} if there is none. All call it.

        Rank 0 chooses: its disk may be the only one that has whole files.
        """
        variables = layer_api.state_of(model)
        found: list[str] = json.loads(layer_api.texts_of_job(model, json.dumps(self._files.names()))[0])
        for name in found:
            path, problem = self._files.state(name), ""
            state = json.loads(layer_api.texts_of_job(model, self._files.read_as_text(name, self._steps_per_epoch))[0])
            if "refused" in state:
                raise ValueError(state["refused"])
            if "unreadable" in state:
                problem = state["unreadable"]
            elif state.get("sharded"):
                try:
                    sharded_checkpoints.load(model, self._files.shards(name))
                except sharded_checkpoints.DamagedError as error:
                    problem = str(error)
                else:
                    _set_seeds(model, state, path)
            else:
                load = functools.partial(self._load_whole, model, name, state)
                problem = strategies.load_on_all(model.distribute_strategy, load, variables)
            if not problem:
                return state
            _logger.warning("%s cannot be read (%s); an older checkpoint is looked for.", path, problem)
        if found:
            raise ValueError(
                f"None of the {len(found)} checkpoints in {self._files.folder} can be read. "
                "Restore them from a copy, or delete the folder to start over."
            )
        return {}

    def _load_whole(self, model: keras.Model, name: str, state: Mapping[str, Any]) -> str:
        """Loads the files of a checkpoint, on rank 0; returns the error of files that cannot be read, or ""."""
        try:
            load_keras_file(model, self._files.weights(name))
            adapters.read(self._files.adapters(name), model)
        except OSError as error:
            return f"{error}" or type(error).__name__
        _set_seeds(model, state, self._files.state(name))
        return ""


def _set_seeds(model: keras.Model, state: Mapping[str, Any], path: Path) -> None:
    seeds = seeds_of(model)
    if len(seeds) != len(state["seeds"]):
        _logger.warning(
            "%s has %d random seeds, the model %d, as under another mesh: these seeds are not restored.",
            path,
            len(state["seeds"]),
            len(seeds),
        )
        return
    for variable, value in zip(seeds, state["seeds"], strict=True):
        # Other processes may own it: each one that does takes the value.
        variable.assign(layer_api.StoredArray(np.asarray(value, variable.dtype)))


def seeds_of(model: keras.Model) -> list[Any]:
    """Returns the random seeds of the model's layers, which Keras does not save with the weights."""
    kept = {id(v) for v in [*model.weights, *model.metrics_variables]}
    return [v for v in model.variables if id(v) not in kept]
