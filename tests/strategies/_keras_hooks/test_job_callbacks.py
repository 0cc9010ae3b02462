"""Our first and last callback, in one process; what they decide for several is in `processes/suite_files.py`."""

from __future__ import annotations

import keras
import numpy as np
import pytest

import strategies


def made(strategy: strategies.MirroredStrategy | None = None) -> keras.Model:
    if strategy is None:
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
        return model
    with strategy.scope():
        return made()


@pytest.fixture(scope="module")
def ours() -> keras.Model:
    return made(strategies.MirroredStrategy(["CPU:0", "CPU:1"]))


def names(callbacks: keras.callbacks.CallbackList) -> list[str]:
    return [type(each).__name__ for each in callbacks.callbacks]


@pytest.mark.parametrize("late", [False, True], ids=["made with the model", "given the model later"])
def test_every_list_has_them_once(ours: keras.Model, late: bool) -> None:
    """A list that a program makes for a loop of its own has them too."""
    given = [keras.callbacks.TerminateOnNaN()]
    callbacks = keras.callbacks.CallbackList(given, add_history=True, model=None if late else ours)
    callbacks.set_model(ours)
    expected = ["FirstCallback", "TerminateOnNaN", "History", "SlowInputWarning", "LastCallback"]
    assert names(callbacks) == expected
    assert len(given) == 1
    ours.fit(np.ones((4, 2)), np.ones((4, 1)), verbose=0, callbacks=callbacks)
    assert names(callbacks) == expected


def test_keras_calls_callbacks_on_the_thread_that_trains(ours: keras.Model) -> None:
    """On another thread, processes would agree to stop only after the next step has begun."""
    callbacks = keras.callbacks.CallbackList([], model=ours)
    assert not any((callbacks._async_train, callbacks._async_test, callbacks._async_predict))


def test_the_position_is_the_number_of_finished_steps(ours: keras.Model) -> None:
    member = ours.distribute_strategy.extended.engine.member
    x, y, seen = np.ones((12, 2)), np.ones((12, 1)), []
    note = keras.callbacks.LambdaCallback(
        on_train_batch_begin=lambda batch, logs: seen.append(str(member.position)),
        on_train_batch_end=lambda batch, logs: seen.append(str(member.position)),
        on_test_begin=lambda logs: seen.append(str(member.position)),
    )
    ours.fit(x, y, batch_size=6, epochs=2, verbose=0, callbacks=[note], validation_data=(x, y))
    epoch = ["before its first step", "after step 1", "after step 1", "after step 2"]
    assert [each.rpartition(", ")[2] for each in seen] == [*epoch, "before its first step"] * 2
    assert seen[5].startswith("in fit, epoch 2, ")
    assert str(member.position) == "after fit, epoch 2, after step 2"
    ours.evaluate(x, y, batch_size=4, verbose=0)
    assert str(member.position) == "after evaluate, after step 3"
    ours.predict(x, batch_size=3, verbose=0)
    assert str(member.position) == "after predict, after step 4"
    ours.train_on_batch(x, y)
    assert str(member.position) == "after train_on_batch, after step 1"


def test_plain_keras_is_left_alone(ours: keras.Model) -> None:
    assert names(keras.callbacks.CallbackList(model=made(), add_history=True)) == ["History"]
