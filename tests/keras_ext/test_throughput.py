"""Throughput: what it excludes, what it logs, and when."""

from __future__ import annotations

import csv
import math
import re
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from keras_ext import Throughput

X = np.random.default_rng(0).standard_normal((40, 4)).astype("float32")


class Clock:
    """A clock that moves only when asked to."""

    now = 0.0

    def __call__(self) -> float:
        return self.now


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> Clock:
    found = Clock()
    monkeypatch.setattr("time.perf_counter", found)
    return found


def play(
    callback: Throughput, clock: Clock, epochs: range, *, steps: int = 3, steps_per_execution: int = 1
) -> list[dict[str, float]]:
    """Simulates `fit`: 100 s for its first execution, 1 s per other, 50 s of validation. Returns the epochs' logs."""
    logs = []
    callback.set_params({"steps": steps})
    callback.on_train_begin()
    for epoch in epochs:
        callback.on_epoch_begin(epoch)
        for begin in range(0, steps, steps_per_execution):
            callback.on_train_batch_begin(begin)
            clock.now += 100 if epoch == epochs[0] and begin == 0 else 1
            callback.on_train_batch_end(begin + steps_per_execution - 1, {})
        callback.on_test_begin()
        clock.now += 50
        logs.append({"loss": 0.0})
        callback.on_epoch_end(epoch, logs[-1])
    return logs


@pytest.mark.parametrize(
    ("epochs", "steps_per_execution", "expected"),
    [
        (range(1), 1, [2 / 2]),
        (range(3), 1, [2 / 2, 3 / 3, 3 / 3]),
        (range(5, 7), 1, [2 / 2, 3 / 3]),
        (range(2), 2, [1 / 1, 3 / 2]),
    ],
)
def test_leaves_out_what_happens_once(
    clock: Clock, epochs: range, steps_per_execution: int, expected: list[float]
) -> None:
    callback = Throughput(10, "rows")
    assert callback.units_per_second == 0
    logs = play(callback, clock, epochs, steps_per_execution=steps_per_execution)
    assert [each["rows_per_second"] for each in logs] == pytest.approx([10 * rate for rate in expected])
    assert callback.input_share is callback.communication_share is None
    # Each call of `fit` has its own first execution.
    before = callback.units_per_second
    play(callback, clock, epochs, steps_per_execution=steps_per_execution)
    assert callback.units_per_second == pytest.approx(before)


def test_a_single_execution_is_not_measured(clock: Clock) -> None:
    callback = Throughput(10)
    first, second = play(callback, clock, range(2), steps=3, steps_per_execution=3)
    assert math.isnan(first["images_per_second"])
    assert second["images_per_second"] == pytest.approx(30)
    assert callback.units_per_second == pytest.approx(30)


def test_running_values_are_of_the_epoch(clock: Clock) -> None:
    callback = Throughput(1, "rows")
    play(callback, clock, range(1))
    callback.on_epoch_begin(1)
    seen = []
    for batch, seconds in enumerate([1, 3, 0.1, 5]):
        callback.on_train_batch_begin(batch)
        clock.now += seconds
        logs: dict[str, float] = {}
        callback.on_train_batch_end(batch, logs)
        seen.append(logs.get("rows_per_second"))
    # Updated at the beginning of each execution, but at most twice a second.
    assert seen == [None, pytest.approx(1), pytest.approx(2 / 4), pytest.approx(2 / 4)]


@pytest.mark.parametrize(
    ("arguments", "message"), [((0,), "above 0. Received: units_per_step=0"), ((1, "two words"), "'two words'")]
)
def test_arguments_out_of_range(arguments: Any, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        Throughput(*arguments)


def make(strategy: Any, **settings: Any) -> keras.Model:
    with strategy.scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse", **settings)
    return model


def mirrored(num_replicas: int = 2) -> Any:
    return strategies.MirroredStrategy([f"CPU:{i}" for i in range(num_replicas)])


@pytest.mark.parametrize("steps_per_execution", [1, 3])
def test_logs_have_rates_and_shares(
    steps_per_execution: int, tmp_path: Path, capfd: pytest.CaptureFixture[str]
) -> None:
    callback = Throughput(8, "rows")
    callbacks = [callback, keras.callbacks.CSVLogger(str(tmp_path / "log.csv"))]
    model = make(mirrored(), steps_per_execution=steps_per_execution)
    logs = model.fit(
        X, X[:, :1], batch_size=8, epochs=3, initial_epoch=1, validation_data=(X, X[:, :1]), callbacks=callbacks
    ).history
    assert callback.units_per_second > 0
    names = ["waiting_input", "waiting_communication"]
    for name, share in zip(names, (callback.input_share, callback.communication_share), strict=True):
        assert share is not None
        assert 0 <= share <= 1
        assert all(0 <= value <= 1 for value in logs[name])
    assert logs["waiting_communication"][-1] > 0
    rows = list(csv.DictReader((tmp_path / "log.csv").read_text().splitlines()))
    assert [float(row["rows_per_second"]) for row in rows] == logs["rows_per_second"]
    shown = re.findall(r"rows_per_second: ([\d.]+)", capfd.readouterr().out)
    assert shown[-1] == f"{logs['rows_per_second'][-1]:.4f}"
    before = callback.units_per_second
    model.fit(X, X[:, :1], batch_size=8, verbose=0, callbacks=[callback])
    assert callback.units_per_second != before


def test_shares_under_plain_keras_and_on_one_device() -> None:
    callback = Throughput(8)
    logs = make(tf.distribute.get_strategy()).fit(X, X[:, :1], batch_size=8, verbose=0, callbacks=[callback]).history
    assert sorted(logs) == ["images_per_second", "loss"]
    assert callback.units_per_second > 0
    assert callback.input_share is callback.communication_share is None
    callback = Throughput(8)
    make(mirrored(1)).fit(X, X[:, :1], batch_size=8, verbose=0, callbacks=[callback])
    assert callback.communication_share == 0


def test_a_step_traced_before_is_not_said_to_wait_for_nothing() -> None:
    model = make(mirrored())
    model.fit(X, X[:, :1], batch_size=8, verbose=0)
    callback = Throughput(8)
    logs = model.fit(X, X[:, :1], batch_size=8, verbose=0, callbacks=[callback]).history
    assert "waiting_communication" not in logs
    assert callback.communication_share is None
    model.compile("sgd", "mse")
    assert "waiting_communication" in model.fit(X, X[:, :1], batch_size=8, verbose=0, callbacks=[callback]).history


def test_waiting_for_input_is_seen(clock: Clock, monkeypatch: pytest.MonkeyPatch) -> None:
    waited = 0.0

    class Waits(keras.callbacks.Callback):
        def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
            nonlocal waited
            clock.now += 0.5
            waited += 0.375

    monkeypatch.setattr(strategies, "seconds_waited", lambda strategy: strategies.SecondsWaited(waited, None))
    callback = Throughput(8)
    model = make(mirrored())
    logs = model.fit(X, X[:, :1], batch_size=8, epochs=2, verbose=0, callbacks=[callback, Waits()]).history
    assert logs["waiting_input"] == [0.75, 0.75]
    assert callback.input_share == 0.75
