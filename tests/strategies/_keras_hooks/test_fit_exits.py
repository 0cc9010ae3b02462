"""Functions that run when `fit` is left."""

from __future__ import annotations

from typing import Any

import keras
import numpy as np
import pytest

import strategies
from strategies._keras_hooks import fit_exits

X = np.ones((8, 2), "float32")


@pytest.fixture(scope="module")
def model() -> keras.Model:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        made = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        made.compile("sgd", "mse")
    return made


class Leaving(keras.callbacks.Callback):
    """Notes what runs at the end; raises an error after the first step if it is to."""

    def __init__(self, *, fails: bool) -> None:
        super().__init__()
        self.fails, self.noted = fails, list[str]()

    def on_train_begin(self, logs: Any = None) -> None:
        for name in ("first", "second"):
            fit_exits.at_exit_of_fit(lambda name=name: self.noted.append(name))  # type: ignore[misc]

    def on_train_batch_end(self, batch: int, logs: Any = None) -> None:
        if self.fails:
            raise OSError("no disk")

    def on_test_end(self, logs: Any = None) -> None:
        self.noted.append("validation")

    def on_train_end(self, logs: Any = None) -> None:
        self.noted.append("end")


def test_they_run_after_a_fit(model: keras.Model) -> None:
    """The validation is a call of another method, with none of its own."""
    callback = Leaving(fails=False)
    model.fit(X, X[:, :1], verbose=0, validation_data=(X, X[:, :1]), callbacks=[callback])
    assert callback.noted == ["validation", "end", "second", "first"]


def test_they_run_after_an_error(model: keras.Model) -> None:
    callback = Leaving(fails=True)
    with pytest.raises(OSError, match="no disk"):
        model.fit(X, X[:, :1], verbose=0, callbacks=[callback])
    assert callback.noted == ["second", "first"]


def test_they_do_not_run_without_a_strategy() -> None:
    plain = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
    plain.compile("sgd", "mse")
    callback = Leaving(fails=False)
    plain.fit(X, X[:, :1], verbose=0, callbacks=[callback])
    assert callback.noted == ["end"]
