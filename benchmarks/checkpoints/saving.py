"""One contender in its processes: saves the same state again and again, and reports seconds."""

from __future__ import annotations

import os
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
from harness.workers import Report

_UNITS = 1024


def _plain(folder: Path, megabytes: int, report: Report) -> None:
    """Writes half of the bytes into a file of this process, and waits until they are on the disk."""
    folder.mkdir(parents=True, exist_ok=True)
    data = np.random.default_rng(0).random(megabytes * 125_000 // 2, "float64")
    path, number = folder / f"of {os.getpid()}", 0
    while True:
        begin = time.perf_counter()
        new = path.with_suffix(f".{number}")
        with new.open("wb", buffering=0) as file:
            view = data.data.cast("B")
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        # Like the checkpoints, of which one is kept.
        path.with_suffix(f".{number - 1}").unlink(missing_ok=True)
        report(time.perf_counter() - begin)
        number += 1


def _training(megabytes: int) -> Any:
    """Returns a model whose weights and slots have this many bytes, on two processes that both have all of it."""
    import keras

    import strategies

    with strategies.MultiWorkerMirroredStrategy().scope():
        # Weights, and Adam's two slots.
        num_layers = max(1, megabytes * 1_000_000 // (3 * 4 * _UNITS * _UNITS))
        layers = [keras.layers.Dense(_UNITS, use_bias=False) for _ in range(num_layers)]
        model = keras.Sequential([keras.Input((_UNITS,)), *layers])
        model.compile("adam", "mse")
    x = np.zeros((8, _UNITS), "float32")
    model.train_on_batch(x, x)
    return model


def _saves(folder: Path, megabytes: int, **options: Any) -> tuple[Callable[[], None], Callable[[], None]]:
    """Returns two functions: one saves the model, the other waits until the save is complete."""
    import keras_ext

    model = _training(megabytes)
    checkpoints = keras_ext.Checkpoints(folder, 10**6, num_kept=1, **options)
    checkpoints.set_model(model)
    epochs = iter(range(1, 10**6))

    def save() -> None:
        checkpoints._save(keras_ext.TrainingPosition(next(epochs)))

    return save, lambda: None if checkpoints._saves is None else checkpoints._saves.wait(model)


def _blocking(folder: Path, megabytes: int, report: Report, **options: Any) -> None:
    save, _ = _saves(folder, megabytes, **options)
    while True:
        begin = time.perf_counter()
        save()
        report(time.perf_counter() - begin)


def _whole(folder: Path, megabytes: int, report: Report) -> None:
    _blocking(folder, megabytes, report)


def _sharded(folder: Path, megabytes: int, report: Report) -> None:
    _blocking(folder, megabytes, report, sharded=True)


def _stall(folder: Path, megabytes: int, report: Report) -> None:
    save, wait = _saves(folder, megabytes, sharded=True, background=True)
    while True:
        begin = time.perf_counter()
        save()
        waited = time.perf_counter() - begin
        wait()
        report(waited)


def _written(folder: Path, megabytes: int, report: Report) -> None:
    save, wait = _saves(folder, megabytes, sharded=True, background=True)
    while True:
        begin = time.perf_counter()
        save()
        wait()
        report(time.perf_counter() - begin)


PROGRAMS: dict[str, Callable[[Path, int, Report], None]] = {
    "plain": _plain,
    "whole": _whole,
    "sharded": _sharded,
    "stall": _stall,
    "written": _written,
}
