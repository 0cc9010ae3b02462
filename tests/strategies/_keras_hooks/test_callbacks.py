"""Every Keras callback does the same under the strategy as on one device."""

from __future__ import annotations

import contextlib
import functools
import os
import pathlib
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest

import strategies
from tests.logs import own_records
from tests.strategies.parity.harness import features, labels, vectors

cb = keras.callbacks
Make = Callable[[pathlib.Path], list[Any]]


def record_batches() -> tuple[list[Any], list[Any]]:
    seen: list[Any] = []
    return seen, [cb.LambdaCallback(on_train_batch_end=lambda batch, logs: seen.append((batch, dict(logs))))]


# The tests compare the training history, the weights, and a callback's files by name and number.
EVERY: dict[str, Make] = {
    "BackupAndRestore": lambda path: [cb.BackupAndRestore(path / "backup", delete_checkpoint=False)],
    "BackupAndRestore by steps": lambda path: [cb.BackupAndRestore(path / "b", save_freq=2, delete_checkpoint=False)],
    "CSVLogger": lambda path: [cb.CSVLogger(path / "log file.csv")],
    "EarlyStopping": lambda path: [
        cb.EarlyStopping("val_loss", patience=0, min_delta=0.5, restore_best_weights=True, start_from_epoch=1)
    ],
    "LearningRateScheduler": lambda path: [cb.LearningRateScheduler(lambda epoch, rate: rate * 0.5, verbose=0)],
    "ModelCheckpoint": lambda path: [cb.ModelCheckpoint(path / "model {epoch}.keras", monitor="val_loss")],
    "ModelCheckpoint, best weights": lambda path: [
        cb.ModelCheckpoint(path / "best.weights.h5", monitor="val_loss", save_best_only=True, save_weights_only=True)
    ],
    "ModelCheckpoint by steps": lambda path: [cb.ModelCheckpoint(path / "step {batch}.keras", save_freq=3)],
    "ProgbarLogger": lambda path: [cb.ProgbarLogger()],
    "ReduceLROnPlateau": lambda path: [cb.ReduceLROnPlateau("loss", factor=0.1, patience=0, min_delta=10.0)],
    "SwapEMAWeights": lambda path: [cb.SwapEMAWeights(swap_on_epoch=True)],
    "TensorBoard": lambda path: [
        cb.TensorBoard(
            path / "board",
            histogram_freq=1,
            write_graph=True,
            update_freq="batch",
            write_steps_per_second=True,
        )
    ],
    "TerminateOnNaN": lambda path: [cb.TerminateOnNaN()],
}


def make() -> keras.Model:
    keras.utils.set_random_seed(1)
    model = keras.Sequential([keras.Input((6,)), keras.layers.Dense(8, activation="tanh"), keras.layers.Dense(3)])
    loss = keras.losses.SparseCategoricalCrossentropy(from_logits=True)
    model.compile(keras.optimizers.SGD(0.1, momentum=0.5, use_ema=True), loss, metrics=["accuracy"])
    return model


@functools.cache
def _made(num_replicas: int) -> tuple[keras.Model, list[np.ndarray]]:
    """Returns one model for all tests, so that its steps are traced once, and the initial values of its variables."""
    devices = [f"CPU:{i}" for i in range(num_replicas)]
    with strategies.MirroredStrategy(devices).scope() if num_replicas > 1 else contextlib.nullcontext():
        model = make()
        model.optimizer.build(model.trainable_variables)
    return model, [np.array(variable) for variable in (*model.variables, *model.optimizer.variables)]


def as_made(num_replicas: int) -> keras.Model:
    """Returns the model with its initial values."""
    model, initial = _made(num_replicas)
    for variable, value in zip((*model.variables, *model.optimizer.variables), initial, strict=True):
        variable.assign(value)
    model.stop_training = False
    return model


def fit(model: keras.Model, callbacks: list[Any], **kwargs: Any) -> dict[str, list[float]]:
    settings = {
        "epochs": 3,
        "batch_size": 14,
        "shuffle": False,
        "verbose": 0,
        "validation_split": 0.2,
    } | kwargs
    history: dict[str, list[float]] = model.fit(vectors(), labels(), callbacks=callbacks, **settings).history
    return history


def files(path: pathlib.Path) -> list[str]:
    return sorted(str(f.relative_to(path)) for f in path.rglob("*") if f.is_file() and "tfevents" not in f.name)


@pytest.mark.parametrize("name", EVERY)
@pytest.mark.filterwarnings("ignore:Early stopping conditioned")
def test_does_what_it_does_on_one_device(name: str, tmp_path: pathlib.Path) -> None:
    model, plain = as_made(3), as_made(1)
    for folder in ("ours here", "plain"):
        (tmp_path / folder).mkdir()
    received = fit(model, EVERY[name](tmp_path / "ours here"))
    expected = fit(plain, EVERY[name](tmp_path / "plain"))
    assert sorted(received) == sorted(expected)
    for key, values in expected.items():
        np.testing.assert_allclose(received[key], values, atol=1e-6)
    for mine, theirs in zip(model.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)
    assert files(tmp_path / "ours here") == files(tmp_path / "plain")


def test_batch_logs_are_those_of_the_global_batch() -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1", "CPU:2", "CPU:3"]).scope():
        model = make()
    received, callbacks = record_batches()
    fit(model, callbacks)
    expected, callbacks = record_batches()
    fit(as_made(1), callbacks)
    assert len(received) == len(expected)
    for (batch, logs), (expected_batch, expected_logs) in zip(received, expected, strict=True):
        assert batch == expected_batch
        assert logs == pytest.approx(expected_logs, abs=1e-6)


def test_checkpoint_within_an_epoch_holds_agreed_statistics(tmp_path: pathlib.Path) -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.BatchNormalization(), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    x = features(8, 4)
    save = cb.ModelCheckpoint(tmp_path / "at {batch}.keras", save_freq=1)
    model.fit(x, x[:, :1], batch_size=8, verbose=0, shuffle=False, callbacks=[save])
    saved = keras.models.load_model(next(tmp_path.glob("*.keras")))
    expected = 0.01 * (x[:4].mean(axis=0) + x[4:].mean(axis=0)) / 2
    np.testing.assert_allclose(saved.layers[0].moving_mean.numpy(), expected, atol=1e-6)


def test_restores_after_an_interruption(tmp_path: pathlib.Path) -> None:
    """A run that is interrupted in the second epoch and started again ends like an undisturbed one."""

    class Interrupt(keras.callbacks.Callback):
        def on_epoch_end(self, epoch: int, logs: Any = None) -> None:
            if epoch == 1:
                raise KeyboardInterrupt

    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    backup = tmp_path / "back up"
    with strategy.scope():
        model = make()
    with pytest.raises(KeyboardInterrupt):
        fit(model, [cb.BackupAndRestore(backup), Interrupt()])
    with strategy.scope():
        again = make()
    fit(again, [cb.BackupAndRestore(backup)])
    plain = as_made(1)
    fit(plain, [])
    for mine, theirs in zip(again.get_weights(), plain.get_weights(), strict=True):
        np.testing.assert_allclose(mine, theirs, atol=1e-6)


def test_a_backup_within_an_epoch_is_reported_to_repeat_steps(
    tmp_path: pathlib.Path, caplog: pytest.LogCaptureFixture
) -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = make()
    model.fit(features(12, 6), np.zeros(12), batch_size=4, verbose=0, callbacks=[backup_of_steps(tmp_path)])
    assert not own_records(caplog)
    model.fit(features(12, 6), np.zeros(12), batch_size=4, verbose=0, callbacks=[backup_of_steps(tmp_path)])
    assert "weights of step 2 of epoch 1, at the first step of that epoch" in caplog.text
    assert "keras_ext.Checkpoints(..., every_steps=2)" in caplog.text


def backup_of_steps(folder: pathlib.Path) -> Any:
    return cb.BackupAndRestore(folder / "b", save_freq=2, delete_checkpoint=False)


def test_a_folder_that_another_process_makes_first(tmp_path: pathlib.Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Keras checks, then makes the folder: it fails if another process makes it in between."""
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = make()
    make_folder = os.makedirs

    def second(path: Any, *args: Any, **kwargs: Any) -> None:
        if pathlib.Path(path).is_relative_to(tmp_path):
            pathlib.Path(path).mkdir(parents=True)
        make_folder(path, *args, **kwargs)

    monkeypatch.setattr(os, "makedirs", second)
    fit(model, [cb.ModelCheckpoint(tmp_path / "of {epoch}" / "a model.keras")])
    assert list((tmp_path / "of 1").glob("*.keras"))
