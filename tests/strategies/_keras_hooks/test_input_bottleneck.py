"""The log line for training that waits for its input."""

from __future__ import annotations

import functools
import logging
import time
from collections.abc import Iterator
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies._keras_hooks import callbacks as hooked
from strategies._keras_hooks import input_bottleneck
from strategies._keras_hooks.input_bottleneck import SlowInputWarning
from tests.clock import Clock

NUM_BATCHES = 12
X = np.ones((8 * NUM_BATCHES, 4), "float32")


@pytest.fixture(scope="module")
def model() -> keras.Model:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


class WaitingClock(Clock):
    """A clock, and the time for which training has waited for its input."""

    waited = 0.0

    def seconds_waited(self, strategy: Any) -> strategies.SecondsWaited:
        return strategies.SecondsWaited(self.waited, None)


@pytest.fixture
def clock(monkeypatch: pytest.MonkeyPatch) -> WaitingClock:
    clock = WaitingClock()
    monkeypatch.setattr(input_bottleneck, "time", clock)
    monkeypatch.setattr(input_bottleneck, "seconds_waited", clock.seconds_waited)
    return clock


class Passes(keras.callbacks.Callback):
    """In each step some seconds pass in waiting for a batch, and others in work."""

    def __init__(self, clock: WaitingClock, waits: float, works: float) -> None:
        super().__init__()
        self._clock, self._waits, self._works = clock, waits, works

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        self._clock.sleep(self._waits + self._works)
        self._clock.waited += self._waits


def fit(model: keras.Model, passes: Passes, **arguments: Any) -> None:
    model.fit(X, X[:, :1], batch_size=8, verbose=0, shuffle=False, callbacks=[passes], **arguments)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "bottleneck" in record.getMessage()]


def test_slow_input_is_reported_once_per_fit(
    model: keras.Model, clock: WaitingClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooked, "SlowInputWarning", functools.partial(SlowInputWarning, seconds=0.1, steps=3))
    for num_fits in (1, 2):
        # Counting continues across epochs, and with validation between them.
        fit(model, Passes(clock, waits=0.03, works=0.09), epochs=3, validation_data=(X, X[:, :1]))
        assert len(lines(caplog)) == num_fits
    assert caplog.records[-1].levelno == logging.WARNING
    assert lines(caplog)[0].startswith("Input is the bottleneck: 25 % of the last ")
    assert "end the dataset with .prefetch(2)" in lines(caplog)[0]
    model.evaluate(X, X[:, :1], verbose=0)
    assert len(lines(caplog)) == 2


def test_the_time_waited_is_that_of_the_strategy(
    model: keras.Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    """By the real clock: any wait is too long."""
    monkeypatch.setattr(
        hooked, "SlowInputWarning", functools.partial(SlowInputWarning, share=0.0, seconds=0.0, steps=3)
    )

    def made() -> Iterator[Any]:
        for _ in range(NUM_BATCHES):
            time.sleep(0.01)
            yield X[:8], X[:8, :1]

    spec = (tf.TensorSpec([8, 4]), tf.TensorSpec([8, 1]))
    dataset = tf.data.Dataset.from_generator(made, output_signature=spec)
    dataset = dataset.apply(tf.data.experimental.assert_cardinality(NUM_BATCHES)).prefetch(2)
    model.fit(dataset, verbose=0, shuffle=False)
    assert len(lines(caplog)) == 1


@pytest.mark.parametrize(
    ("waits", "works", "thresholds"),
    [
        (0.0, 0.03, {"seconds": 0.1, "steps": 3}),
        (0.03, 0.0, {"seconds": 0.1, "steps": NUM_BATCHES}),
        (0.03, 0.0, {"seconds": 60.0, "steps": 3}),
        (0.03, 0.0, {}),
    ],
    ids=["fast input", "too few steps", "too short", "as it is in every fit"],
)
def test_silent_otherwise(
    model: keras.Model,
    clock: WaitingClock,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    waits: float,
    works: float,
    thresholds: Any,
) -> None:
    monkeypatch.setattr(hooked, "SlowInputWarning", functools.partial(SlowInputWarning, **thresholds))
    fit(model, Passes(clock, waits, works))
    assert lines(caplog) == []


def test_plain_keras_is_left_alone(
    clock: WaitingClock, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooked, "SlowInputWarning", functools.partial(SlowInputWarning, seconds=0.1, steps=3))
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    fit(plain, Passes(clock, waits=0.03, works=0.0))
    assert lines(caplog) == []
