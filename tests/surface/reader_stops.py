"""Stops in the middle of an epoch, and resuming to the weights and logs of an uninterrupted run."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

import keras

import keras_ext
from tests.surface.cells import Outcome
from tests.surface.reader_cells import EPOCHS, compared
from tests.surface.reader_places import BatchLogs, Place, Values
from tests.surface.readers import Reader
from tests.surface.reading import NUM_BATCHES

#: Number of steps of the second epoch before the stop.
STEPS = 3


class Stopped(Exception):  # noqa: N818
    """Ends training like an error of the program."""


class _Stop(keras.callbacks.Callback):
    def on_epoch_begin(self, epoch: int, logs: Any = None) -> None:
        self._epoch = epoch

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self._epoch == EPOCHS - 1 and batch == STEPS - 1:
            raise Stopped


def _made(reader: Reader, place: Place, first: int = 0) -> dict[str, Any]:
    with place.scope():
        return reader.make(first)


def _until_stopped(model: Any, arguments: Mapping[str, Any], callback: Any) -> None:
    keras.utils.set_random_seed(11)
    try:
        model.fit(**arguments, epochs=EPOCHS, verbose=0, callbacks=[callback, _Stop()])
    except Stopped:
        return
    raise AssertionError("training was to be stopped")


def _lost(model: Any) -> None:
    """Erases the trained weights, as in a process that starts again."""
    model.set_weights([0 * weight for weight in model.get_weights()])


def with_checkpoints(reader: Reader, place: Place) -> Values:
    """Stops after the third step of an epoch, two of which are saved, and resumes with the third."""
    model = place.model(reader.inputs)
    folder = place.new_folder()

    def checkpoints() -> keras_ext.Checkpoints:
        return keras_ext.Checkpoints(folder, steps_per_epoch=NUM_BATCHES, every_steps=2)

    _until_stopped(model, _made(reader, place), checkpoints())
    model = place.model(reader.inputs)
    _lost(model)
    logs, again = BatchLogs(), checkpoints()
    at = again.restore(model)
    assert (at.epoch, at.step) == (EPOCHS - 1, 2)
    rest = _made(reader, place, at.step)
    model.fit(**rest, initial_epoch=at.epoch, epochs=EPOCHS, verbose=0, callbacks=[logs, again])
    history = [again.history[name] for name in sorted(again.history)]
    return {"logs of steps": logs.values, "history": history, "weights": model.get_weights()}


def with_backup(reader: Reader, place: Place) -> Values:
    """Stops in the second epoch, and repeats it from the backup of the first."""
    return _from_backup(reader, place, keras.callbacks.BackupAndRestore(place.new_folder()))


def with_backup_of_steps(reader: Reader, place: Place) -> Values:
    """Stops when there is a backup of some steps of the epoch: Keras repeats these steps, on one device, too."""
    return _from_backup(reader, place, keras.callbacks.BackupAndRestore(place.new_folder(), save_freq=2))


def _from_backup(reader: Reader, place: Place, backup: keras.callbacks.BackupAndRestore) -> Values:
    model = place.model(reader.inputs)
    _until_stopped(model, _made(reader, place), backup)
    model = place.model(reader.inputs)
    _lost(model)
    logs = BatchLogs()
    history = model.fit(**_made(reader, place), epochs=EPOCHS, verbose=0, callbacks=[logs, backup]).history
    return {
        "logs of steps": logs.values,
        "history": [history[name] for name in sorted(history)],
        "weights": model.get_weights(),
    }


def _undisturbed(reader: Reader, place: Place, first: int) -> Values:
    model = place.model(reader.inputs)
    keras.utils.set_random_seed(11)
    logs = BatchLogs()
    history = model.fit(**_made(reader, place), epochs=EPOCHS, verbose=0, callbacks=[logs]).history
    return {
        "logs of steps": logs.values[NUM_BATCHES * (EPOCHS - 1) + first :],
        "history": [history[name] if first else history[name][-1:] for name in sorted(history)],
        "weights": model.get_weights(),
    }


def undisturbed_from_a_step(reader: Reader, place: Place) -> Values:
    """Trains without a stop; returns all logs of epochs, and of the steps that follow a checkpoint."""
    return _undisturbed(reader, place, 2)


def undisturbed_from_an_epoch(reader: Reader, place: Place) -> Values:
    """Trains without a stop; returns the logs of the second epoch."""
    return _undisturbed(reader, place, 0)


@dataclass(frozen=True)
class Keeper:
    """A callback that keeps the position.

    Attributes:
        run: stops and resumes.
        expected: trains without a stop, on one device; `run` where Keras does not resume at the position.
        within: whether it resumes within an epoch.
    """

    run: Callable[[Reader, Place], Values]
    expected: Callable[[Reader, Place], Values]
    within: bool = False


KEEPERS: Mapping[str, Keeper] = {
    "Checkpoints(every_steps=2)": Keeper(with_checkpoints, undisturbed_from_a_step, within=True),
    "BackupAndRestore": Keeper(with_backup, undisturbed_from_an_epoch),
    "BackupAndRestore(save_freq=2)": Keeper(with_backup_of_steps, with_backup_of_steps),
}


def stopped(reader: Reader, name: str, place: Place, plain: Place) -> Outcome:
    """Stops a run in its second epoch, resumes it, and compares it with an uninterrupted run on one device."""
    keeper = KEEPERS[name]
    if keeper.within and reader.fixed:
        return Outcome("absent", words=reader.fixed)
    expected = keeper.expected
    if expected is not keeper.run and not keeper.within and reader.fixed:
        # A resumed shuffle starts with its first order again, on one device, too.
        expected = keeper.run
    return compared(reader, place, plain, keeper.run, expected)
