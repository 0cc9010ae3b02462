"""Callbacks that save and restore the model, in jobs of several processes.

Callbacks in a list of a model of our strategies get a subclass of their class, see ``subclasses``. Used with another
model later, they run as Keras' own.
"""

from __future__ import annotations

import json
import logging
import types
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import keras

from strategies._keras_hooks.keras_versions import ORBAX_CHECKPOINTS
from strategies._keras_hooks.subclasses import become, subclass
from strategies.engine.engine import engine_of, engine_of_processes
from strategies.saving.driving import drive
from strategies.saving.restoring import load_on_all, state_of, sum_accumulated, variables_of
from strategies.steps.metric_variables import MetricVariable

_logger = logging.getLogger(__name__)


def distribute(callback: keras.callbacks.Callback) -> None:
    """Gives a callback that saves or restores the model the methods for several processes."""
    for plain, ours in _CLASSES.items():
        if isinstance(callback, plain) and not isinstance(callback, ours):
            become(callback, subclass(type(callback), ours))


class DistributedBackup(keras.callbacks.BackupAndRestore):
    """A backup that rank 0 writes, reads and deletes: the machines of the others need not have the file."""

    def on_train_begin(self, logs: Mapping[str, float] | None = None) -> None:
        """Reads the backup on rank 0, which sends weights and epoch to the others."""
        model, read = self.model, super().on_train_begin
        if engine_of_processes(model.distribute_strategy) is None:
            read(logs)
            if engine_of(model.distribute_strategy) is not None:
                self._warn_if_within_an_epoch()
            return
        model._initial_epoch = 0

        def load() -> str:
            read(logs)
            self._warn_if_within_an_epoch()
            return str(model._initial_epoch)

        model._initial_epoch = int(load_on_all(model.distribute_strategy, load, state_of(model)))

    def _warn_if_within_an_epoch(self) -> None:
        """Logs that steps are repeated, as on one device: Keras cannot begin within an epoch."""
        metadata = Path(self.backup_dir) / "training_metadata.json"
        if self.save_freq == "epoch" or not metadata.exists():
            return
        position = json.loads(metadata.read_text())
        _logger.warning(
            "BackupAndRestore(save_freq=%r) resumes with the weights of step %d of epoch %d, at the first step of that "
            "epoch, as Keras does on one device: these steps are taken twice. keras_ext.Checkpoints(..., "
            "every_steps=%r) resumes at the next step.",
            self.save_freq,
            position["batch"] + 1,
            position["epoch"] + 1,
            self.save_freq,
        )

    def _save_model(self) -> None:
        self._on_rank_0(super()._save_model)

    def on_train_end(self, logs: Mapping[str, float] | None = None) -> None:
        """Deletes the backup, unless it is to stay."""
        end = super().on_train_end
        self._on_rank_0(lambda: end(logs))

    def _on_rank_0(self, function: Callable[[], None]) -> None:
        engine = engine_of_processes(self.model.distribute_strategy)
        if engine is None:
            function()
            return
        sum_accumulated(self.model.optimizer)
        drive(engine, variables_of(self.model), function)


class DistributedCheckpoint(keras.callbacks.ModelCheckpoint):
    """A checkpoint that all ranks save together."""

    def _save_model(self, epoch: int, batch: int | None, logs: Mapping[str, float] | None) -> None:
        engine = engine_of(self.model.distribute_strategy)
        path = str(self._get_file_path(epoch, batch, logs))
        if engine is not None and "://" not in path:
            # Keras makes the folder on all ranks, and fails where another one makes it after its check.
            Path(path).parent.mkdir(parents=True, exist_ok=True)
        if engine is not None and engine.num_processes > 1:
            sum_accumulated(self.model.optimizer)
        super()._save_model(epoch, batch, logs)


class _SavesTree(keras.callbacks.Callback):
    """A callback that writes the state tree on rank 0 only: Orbax does not know of other processes."""

    def _save_checkpoint(self, *args: Any, **kwargs: Any) -> None:
        model, save = self.model, super()._save_checkpoint
        engine = engine_of_processes(model.distribute_strategy)
        if engine is None:
            save(*args, **kwargs)
            return
        totals = [each.value for each in model.metrics_variables if isinstance(each.value, MetricVariable)]
        with engine.metric_totals(totals):
            drive(engine, variables_of(model), lambda: save(*args, **kwargs))


#: By class of Keras, the class whose methods come before those of that class.
_CLASSES: dict[type, type] = {
    keras.callbacks.BackupAndRestore: DistributedBackup,
    keras.callbacks.ModelCheckpoint: DistributedCheckpoint,
}
for _orbax in ORBAX_CHECKPOINTS:
    _CLASSES[_orbax] = types.new_class("DistributedOrbaxCheckpoint", (_SavesTree, _orbax))
