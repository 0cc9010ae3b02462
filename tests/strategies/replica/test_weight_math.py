"""Objects that stand for a variable compute as a variable does."""

from __future__ import annotations

import operator
from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from strategies.replica.row_views import RowView
from strategies.replica.splitting import SplitWeight
from strategies.replica.weight_math import WeightMath
from strategies.replica.weight_slices import WeightSlice

ROWS = np.arange(1, 7, dtype="float32").reshape(3, 2)


def split() -> SplitWeight:
    weight = SplitWeight("kernel", ROWS.shape, 0, [2, 1])
    for part in (ROWS[:2], ROWS[2:]):
        weight.add(keras.Variable(part))
    return weight


#: By class: an object whose value is ROWS.
MADE: dict[str, Callable[[], WeightMath]] = {
    "WeightSlice": lambda: WeightSlice(tf.Variable(ROWS), 0, ROWS.size, 0, [0], whole_on_owner=[tf.Variable(ROWS)]),
    "SplitWeight": split,
    "RowView": lambda: RowView(tf.Variable(np.concatenate([ROWS, ROWS])), tf.constant([3, 1, 5])),
}
CALLS: dict[str, Callable[[Any], Any]] = {
    "add": lambda x: (x + 2.0, 2.0 + x),
    "sub": lambda x: (x - 2.0, 2.0 - x),
    "mul": lambda x: (x * 2.0, 2.0 * x),
    "div": lambda x: x / 2.0,
    "neg": operator.neg,
    "tensors": lambda x: (tf.square(x), tf.ones((3, 2)) + x),
    "keras": lambda x: (keras.ops.cast(x, "float16"), keras.ops.sqrt(x.value)),
    "ndim": lambda x: x.ndim,
}


@pytest.mark.parametrize("call", CALLS)
@pytest.mark.parametrize("kind", MADE)
def test_computes_as_a_variable_does(kind: str, call: str) -> None:
    found, expected = CALLS[call](MADE[kind]()), CALLS[call](keras.Variable(ROWS))
    for one, other in zip(tf.nest.flatten(found), tf.nest.flatten(expected), strict=True):
        np.testing.assert_array_equal(one, other)


def test_it_stands_for_its_own_value() -> None:
    weight = split()
    assert weight.value is weight
