"""One contender in its processes: saves the same state again and again, and reports seconds."""

from __future__ import annotations

import functools
import itertools
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
    path = folder / f"of {os.getpid()}"
    for number in itertools.count():
        begin = time.perf_counter()
        new = path.with_suffix(f".{number}")
        with new.open("wb", buffering=0) as file:
            view = data.data.cast("B")
            while view:
                view = view[file.write(view) :]
            os.fsync(file.fileno())
        # Checkpoints(num_kept=1) deletes the previous file, too.
        path.with_suffix(f".{number - 1}").unlink(missing_ok=True)
        report(time.perf_counter() - begin)


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


def _saves(folder: Path, megabytes: int, report: Report, *, counts_wait: bool = True, **options: Any) -> None:
    """Saves the model as `fit` does; reports the time of a save, with or without the wait until it is complete."""
    import keras_ext

    checkpoints = keras_ext.Checkpoints(folder, 1, num_kept=1, **options)
    checkpoints.set_model(_training(megabytes))
    for epoch in itertools.count():
        begin = time.perf_counter()
        checkpoints.on_epoch_end(epoch)
        saved = time.perf_counter()
        checkpoints.on_train_end()
        report((time.perf_counter() if counts_wait else saved) - begin)


_background = functools.partial(_saves, sharded=True, background=True)

PROGRAMS: dict[str, Callable[[Path, int, Report], None]] = {
    "plain": _plain,
    "whole": _saves,
    "sharded": functools.partial(_saves, sharded=True),
    "stall": functools.partial(_background, counts_wait=False),
    "written": _background,
}
