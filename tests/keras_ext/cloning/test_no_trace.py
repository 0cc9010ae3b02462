"""Copying has no side effects: names, random numbers and draws continue as if there had been no copy."""

from __future__ import annotations

import contextlib
import random
from typing import Any

import keras
import numpy as np

import keras_ext
from strategies import layer_api
from tests.keras_ext.cloning.copies import L, parallelized, staged


class Drawing(keras.Layer):
    """Draws from every random generator in its constructor."""

    def __init__(self, **kwargs: Any) -> None:
        super().__init__(**kwargs)
        self.drawn = [random.random(), np.random.rand(), float(keras.random.uniform(()))]
        self.dense = L.Dense(6)

    def call(self, x: Any) -> Any:
        return self.dense(x)


def test_what_is_made_afterwards_is_as_without_it() -> None:
    def after(copied: Any, *, has_generator: bool) -> list[Any]:
        keras.backend.clear_session()
        keras.utils.set_random_seed(1)
        if has_generator:
            keras.random.uniform(())
        model = keras.Sequential([keras.Input((6,)), Drawing(), L.Dropout(0.5), L.Dense(6)])
        copied(model)
        made = keras.Sequential([keras.Input((6,)), L.Dense(6), Drawing(), L.Dropout(0.5)])
        drawn = [random.random(), np.random.rand(), np.asarray(keras.random.uniform((3,)))]
        weights = [np.asarray(variable) for variable in made.variables]
        return [*(weight.path for weight in made.variables), *drawn, *weights]

    for has_generator in (False, True):
        wanted = after(lambda model: None, has_generator=has_generator)
        for copied in (parallelized, lambda model: staged(model, partition="time"), in_a_stage):
            for mine, theirs in zip(after(copied, has_generator=has_generator), wanted, strict=True):
                np.testing.assert_array_equal(mine, theirs)


def in_a_stage(model: Any) -> Any:
    # The program itself makes this layer.
    return keras_ext.PipelineStage(model, name="stage")


def test_global_state_is_put_back_after_an_error() -> None:
    keras.utils.set_random_seed(1)
    wanted = (random.getstate(), keras.backend.get_uid("dense"))
    with contextlib.suppress(KeyError), layer_api.global_state_kept():
        L.Dense(3)
        raise KeyError
    assert (random.getstate(), keras.backend.get_uid("dense") - 1) == wanted
