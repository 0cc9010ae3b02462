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
from strategies._keras_hooks.input_bottleneck import SlowInputWarning

NUM_BATCHES = 12
X = np.ones((8, 4), "float32")


def batches(seconds: float) -> tf.data.Dataset:
    def made() -> Iterator[Any]:
        for _ in range(NUM_BATCHES):
            time.sleep(seconds)
            yield X, X[:, :1]

    spec = (tf.TensorSpec([8, 4]), tf.TensorSpec([8, 1]))
    dataset = tf.data.Dataset.from_generator(made, output_signature=spec)
    return dataset.apply(tf.data.experimental.assert_cardinality(NUM_BATCHES)).prefetch(2)


@pytest.fixture(scope="module")
def model() -> keras.Model:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    return model


class Works(keras.callbacks.Callback):
    """Makes each step take `seconds` longer."""

    def __init__(self, seconds: float) -> None:
        super().__init__()
        self.seconds = seconds

    def on_train_batch_begin(self, batch: int, logs: Any = None) -> None:
        time.sleep(self.seconds)


def lines(caplog: pytest.LogCaptureFixture) -> list[str]:
    return [record.getMessage() for record in caplog.records if "bottleneck" in record.getMessage()]


def test_slow_input_is_reported_once_per_fit(
    model: keras.Model, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    monkeypatch.setattr(hooked, "SlowInputWarning", functools.partial(SlowInputWarning, seconds=0.1, steps=3))
    for num_fits in (1, 2):
        # Counting continues across epochs, and with validation between them.
        model.fit(batches(0.03), epochs=3, validation_data=(X, X[:, :1]), verbose=0, shuffle=False)
        assert len(lines(caplog)) == num_fits
    assert caplog.records[-1].levelno == logging.WARNING
    assert lines(caplog)[0].startswith("Input is the bottleneck: ")
    assert "end the dataset with .prefetch(2)" in lines(caplog)[0]
    model.evaluate(batches(0.03), verbose=0)
    assert len(lines(caplog)) == 2


@pytest.mark.parametrize(
    ("source", "step", "thresholds"),
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
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
    source: float,
    step: float,
    thresholds: Any,
) -> None:
    monkeypatch.setattr(hooked, "SlowInputWarning", functools.partial(SlowInputWarning, **thresholds))
    model.fit(batches(source), verbose=0, shuffle=False, callbacks=[Works(step)])
    assert lines(caplog) == []


def test_plain_keras_is_left_alone(monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture) -> None:
    monkeypatch.setattr(hooked, "SlowInputWarning", functools.partial(SlowInputWarning, seconds=0.1, steps=3))
    plain = keras.Sequential([keras.Input((4,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    plain.fit(batches(0.03), verbose=0, shuffle=False)
    assert lines(caplog) == []
