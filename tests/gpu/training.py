"""Trains a model in plain Keras or under a strategy, and compares the results."""

from __future__ import annotations

import contextlib
import tempfile
import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import keras
import numpy as np
import tensorflow as tf

import strategies
from tests.gpu.models import Problem
from tests.gpu.setting import peak_mb, reset_peak

_NUM_ROUNDS = 3
_REPEATS = 4


@dataclass
class Trained:
    """A model under training and its losses so far."""

    model: Any
    problem: Problem
    losses: list[float]

    def epoch(self, repeats: int = 1, callbacks: Sequence[keras.callbacks.Callback] = ()) -> float:
        """Trains for one more epoch and returns its seconds."""
        data = self.problem.dataset().repeat(repeats)
        begin = time.perf_counter()
        history = self.model.fit(data, verbose=0, shuffle=False, callbacks=list(callbacks)).history
        self.losses += history["loss"]
        return time.perf_counter() - begin


def step_ms(*several: Trained) -> list[float]:
    """Returns the milliseconds of a step of each: the difference of a long and a short epoch, without fixed costs.

    They train in turns; the fastest epoch of each kind counts.
    """
    times: list[list[tuple[float, float]]] = [[] for _ in several]
    for _ in range(_NUM_ROUNDS):
        for trained, found in zip(several, times, strict=True):
            found.append((trained.epoch(), trained.epoch(repeats=1 + _REPEATS)))
    fastest = [[min(kind) for kind in zip(*found, strict=True)] for found in times]
    return [
        (long - short) / (_REPEATS * trained.problem.num_steps) * 1e3
        for trained, (short, long) in zip(several, fastest, strict=True)
    ]


def peak_of_epoch(trained: Trained, device: str) -> float | None:
    """Trains for an epoch and returns the device's peak memory in MB, including what was allocated before."""
    reset_peak(device)
    trained.epoch()
    return peak_mb(device)


def compiled(
    problem: Problem,
    strategy: tf.distribute.Strategy | None = None,
    wrap: Callable[[Any], Any] = lambda model: model,
    device: str | None = None,
    **options: Any,
) -> Trained:
    """Returns the problem's model with initial weights: on one device without a strategy, or wrapped under one."""
    keras.utils.set_random_seed(0)
    scope = strategy.scope() if strategy else tf.device(device) if device else contextlib.nullcontext()
    with scope:
        model = wrap(problem.build())
        model.compile(**{"jit_compile": False, **problem.compile_options(), **options})
    return Trained(model, problem, [])


def mirrored(devices: tuple[str, ...], mesh: Mapping[str, int] | None = None) -> tf.distribute.Strategy:
    """Returns our strategy on these devices."""
    return strategies.MirroredStrategy(list(devices), mesh=dict(mesh)) if mesh else strategies.MirroredStrategy(devices)


def whole_weights(model: Any) -> list[np.ndarray]:
    """Returns the weights as plain Keras reads them from a file: whole, however they were split."""
    with tempfile.TemporaryDirectory() as folder:
        path = str(Path(folder) / "model.keras")
        model.save(path)
        return list(keras.models.load_model(path, compile=False).get_weights())


def difference(one: Trained, other: Trained) -> float:
    """Returns the largest difference of weights and losses, relative to each one's largest number if that is over 1."""
    mine, theirs = ([*whole_weights(t.model), np.asarray(t.losses)] for t in (one, other))
    found = 0.0
    for a, b in zip(mine, theirs, strict=True):
        gap = np.abs(a.astype("float64") - b.astype("float64")).max(initial=0.0)
        if not np.isfinite(gap):
            return float("nan")
        found = max(found, float(gap) / max(1.0, float(np.abs(b).max(initial=0.0))))
    return found
