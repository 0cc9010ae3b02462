"""Distributed datasets are autotuned by tf.data only where stages of the program may become faster by it."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies
from strategies.batches import autotuning

AUTOTUNE = tf.data.AUTOTUNE


def one_more(x: Any) -> Any:
    return x + 1


def files(x: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(x).map(one_more)


def parsed(x: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(x).map(one_more, num_parallel_calls=AUTOTUNE)


def read(x: Any) -> tf.data.Dataset:
    return tf.data.Dataset.range(x)


#: Programs that transform a range; True if they are autotuned on 16 cores, and on 17.
PROGRAMS: dict[str, tuple[Callable[[tf.data.Dataset], tf.data.Dataset], bool, bool]] = {
    "batches": (lambda data: data.shuffle(7).batch(2).prefetch(AUTOTUNE), False, False),
    "map": (lambda data: data.map(one_more).batch(2), True, True),
    "map in parallel": (lambda data: data.map(one_more, num_parallel_calls=AUTOTUNE).batch(2), False, True),
    "a layer": (lambda data: data.batch(2).map(keras.layers.Rescaling(2.0)), True, True),
    "map, joined with another": (lambda data: tf.data.Dataset.zip((data, data.map(one_more))).batch(2), True, True),
    "files": (lambda data: data.interleave(files).batch(2), True, True),
    "files in parallel": (lambda data: data.interleave(read, num_parallel_calls=AUTOTUNE).batch(2), False, True),
    "files, parsed in parallel": (lambda data: data.interleave(parsed).batch(2), False, True),
}


@pytest.mark.parametrize(("program", "few", "many"), PROGRAMS.values(), ids=PROGRAMS)
def test_is_off_where_no_stage_gains(
    program: Callable[[tf.data.Dataset], tf.data.Dataset], few: bool, many: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])
    for num_cores, expected in ((16, few), (17, many)):
        monkeypatch.setattr(autotuning, "usable_cores", lambda num_cores=num_cores: range(num_cores))
        found = strategy.experimental_distribute_dataset(program(tf.data.Dataset.range(5)))
        assert found.options().autotune.enabled is (None if expected else False)


def test_settings_of_a_program_count() -> None:
    strategy = strategies.MirroredStrategy(["CPU:0"])

    def distributed(options: tf.data.Options) -> tf.data.Dataset:
        program, _, _ = PROGRAMS["map in parallel"]
        return strategy.experimental_distribute_dataset(program(tf.data.Dataset.range(5)).with_options(options))

    for enabled in (True, False):
        options = tf.data.Options()
        options.autotune.enabled = enabled
        assert distributed(options).options().autotune.enabled is enabled
    options = tf.data.Options()
    options.threading.private_threadpool_size = 17
    assert distributed(options).options().autotune.enabled is None


def test_arrays_are_not_autotuned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(autotuning, "usable_cores", lambda: range(64))
    seen = []
    original = autotuning.without_idle_autotuning
    strategy = strategies.MirroredStrategy(["CPU:0", "CPU:1"])

    def noted(dataset: tf.data.Dataset) -> tf.data.Dataset:
        result = original(dataset)
        seen.append(result.options().autotune.enabled)
        return result

    monkeypatch.setattr("strategies.steps.waiting.without_idle_autotuning", noted)
    with strategy.scope():
        model = keras.Sequential([keras.Input((2,)), keras.layers.Dense(1)])
        model.compile("sgd", "mse")
    model.fit(np.ones((8, 2)), np.ones((8, 1)), batch_size=4, validation_split=0.5, verbose=0)
    assert seen == [False, False]
