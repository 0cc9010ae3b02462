"""Initial values drawn in place: bit-identical to eager drawing."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies import layer_api
from strategies.replica import drawing
from strategies.replica.creation_context import creating

SHAPE = (512, 600)
INITIALIZERS: list[Callable[..., Any]] = [
    keras.initializers.GlorotUniform,
    keras.initializers.GlorotNormal,
    keras.initializers.HeNormal,
    keras.initializers.HeUniform,
    keras.initializers.LecunNormal,
    keras.initializers.LecunUniform,
    keras.initializers.RandomNormal,
    keras.initializers.RandomUniform,
    keras.initializers.TruncatedNormal,
]


# TensorFlow has no QR of bfloat16, which `Orthogonal` would need.
CASES = [*itertools.product(INITIALIZERS, ["float32", "bfloat16"]), (keras.initializers.Orthogonal, "float32")]


@pytest.mark.parametrize(("make", "dtype"), CASES)
def test_the_numbers_are_those_of_eager_drawing(
    make: Callable[..., Any], dtype: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    layer_api.replica_parts()
    monkeypatch.setattr(drawing, "_LEAST_BYTES", 1)
    calls: list[str] = []
    traced = drawing.draw

    def counted(kind: str, *args: Any) -> Any:
        calls.append(kind)
        return traced(kind, *args)

    monkeypatch.setattr(drawing, "draw", counted)
    eager = make(seed=3)(SHAPE, dtype=dtype)
    assert not calls
    with creating(draws_in_place=True):
        found = make(seed=3)(SHAPE, dtype=dtype)
    assert len(calls) == 1
    assert found.dtype == eager.dtype
    np.testing.assert_array_equal(np.asarray(found), np.asarray(eager))


def test_a_generator_of_seeds_goes_on() -> None:
    layer_api.replica_parts()
    eager, own = (keras.initializers.RandomNormal(seed=keras.random.SeedGenerator(5)) for _ in range(2))
    expected = [eager(SHAPE), eager((2, 2)), eager(SHAPE)]
    with creating(draws_in_place=True):
        found = [own(SHAPE), own((2, 2)), own(SHAPE)]
    for value, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(value, other)


def test_small_values_are_drawn_eagerly() -> None:
    with creating(draws_in_place=True):
        assert drawing.is_in_place((512, 512), tf.float32)
        assert not drawing.is_in_place((8, 8), tf.float32)
        assert not drawing.is_in_place((None, 2**20), tf.float32)
    assert not drawing.is_in_place((512, 512), tf.float32)
