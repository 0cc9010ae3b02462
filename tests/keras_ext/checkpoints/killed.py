"""Kills a process again and again while it saves, and checks after each kill what the folder has.

``python -m tests.keras_ext.checkpoints.killed FOLDER KILLS SEED``, run by `test_kills`. Processes are forked from one
that has imported everything and computed nothing. It prints a line of JSON for each form.
"""

from __future__ import annotations

import json
import os
import random
import signal
import sys
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import keras
import numpy as np

import keras_ext

FORMS: dict[str, dict[str, Any]] = {
    "whole": {},
    "sharded": {"sharded": True},
    "background": {"sharded": True, "background": True},
}
#: The longest time from the first save until the kill: that of several saves.
_LONGEST_SECONDS = 0.25
_READY = b"r"


def _model() -> keras.Model:
    model = keras.Sequential([keras.Input((64,)), keras.layers.Dense(256), keras.layers.Dense(64)])
    model.compile(keras.optimizers.SGD(0.1, momentum=0.9), "mse")
    model.optimizer.build(model.trainable_variables)
    return model


def _save_for_ever(folder: Path, options: dict[str, Any], ready: int) -> None:
    """Saves the model whose weights are all equal to the number of the epoch, epoch after epoch."""
    model = _model()
    checkpoints = keras_ext.Checkpoints(folder, 1, **options)
    checkpoints.set_model(model)
    epoch = checkpoints.restore(model).epoch
    os.write(ready, _READY)
    while True:
        epoch += 1
        for variable in model.variables:
            variable.assign(np.full(variable.shape, epoch, variable.dtype))
        checkpoints._save(keras_ext.TrainingPosition(epoch))


def _check(folder: Path, options: dict[str, Any], ready: int) -> None:
    """Writes the epoch of the last complete checkpoint, or -1 if a weight is not that epoch's."""
    model = _model()
    # A mark that cannot be used must not be passed over in silence.
    marks = sorted(path.stem for path in folder.glob("step-*.json"))
    epoch = keras_ext.Checkpoints(folder, 1, **options).restore(model).epoch
    is_newest = not marks or int(marks[-1].removeprefix("step-")) == epoch
    is_whole = epoch == 0 or all(bool((np.asarray(variable) == epoch).all()) for variable in model.variables)
    os.write(ready, json.dumps(epoch if is_newest and is_whole else -1).encode())


def _forked(function: Callable[..., None], *arguments: Any) -> tuple[int, int]:
    """Returns a new process that runs a function, and the end of a pipe that the function writes to."""
    reading, writing = os.pipe()
    process = os.fork()
    if process == 0:
        try:
            function(*arguments, writing)
        finally:
            os._exit(0)
    os.close(writing)
    return process, reading


def _kills(folder: Path, options: dict[str, Any], number: int, seed: int) -> list[int]:
    """Returns the epoch of the newest complete checkpoint after each kill."""
    moments, found = random.Random(seed), []
    for _ in range(number):
        process, reading = _forked(_save_for_ever, folder, options)
        assert os.read(reading, 1) == _READY
        time.sleep(moments.uniform(0.0, _LONGEST_SECONDS))
        os.kill(process, signal.SIGKILL)
        os.waitpid(process, 0)
        os.close(reading)
        process, reading = _forked(_check, folder, options)
        found.append(json.loads(os.read(reading, 100) or b"-1"))
        os.waitpid(process, 0)
        os.close(reading)
    return found


def main() -> None:
    """Kills processes that save in each form."""
    folder, number, seed = Path(sys.argv[1]), int(sys.argv[2]), int(sys.argv[3])
    for form, options in FORMS.items():
        print(
            json.dumps({"form": form, "seed": seed, "epochs": _kills(folder / form, options, number, seed)}), flush=True
        )


if __name__ == "__main__":
    main()
