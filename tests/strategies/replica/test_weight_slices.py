"""Slices of weights as variables; whole trainings with them are in tests/strategies/parity/test_sharded.py."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.replica.weight_slices import WeightSlice, beside_weights


def rows_and_elements() -> tuple[tf.Variable, list[WeightSlice]]:
    """Returns a weight on one device, and its slices: cut after its first row and in the middle of its second."""
    component = tf.Variable(tf.reshape(tf.range(12.0), [3, 4]))
    distributed = types.SimpleNamespace(values=(component,))
    variable: Any = types.SimpleNamespace(value=distributed, shape=component.shape, dtype="float32", name="w")
    return component, [WeightSlice(variable, *ends, 0, (0,)) for ends in ((0, 4), (4, 6), (6, 12))]


@pytest.mark.parametrize("eagerly", [True, False])
def test_a_range_is_set_in_its_weight(eagerly: bool) -> None:
    component, slices = rows_and_elements()

    def update() -> None:
        for each in slices[:2]:
            each.assign_add(tf.fill(each.shape, 100.0))

    (update if eagerly else tf.function(update))()
    np.testing.assert_array_equal(component, np.reshape(np.r_[100:106, 6:12], [3, 4]))


@pytest.mark.parametrize("eagerly", [True, False])
def test_beside_weights_only_the_slice_has_new_elements(eagerly: bool) -> None:
    component, slices = rows_and_elements()

    def update() -> tuple[tf.Tensor, tf.Tensor]:
        with beside_weights(slices):
            slices[0].assign_add(tf.ones([1, 4]))
            slices[0].assign_sub(tf.fill([1, 4], 3.0))
            slices[0].scatter_add(tf.IndexedSlices(tf.ones([2, 4]), tf.constant([0, 0])))
            return slices[0].read(), component.read_value()

    new, old = (update if eagerly else tf.function(update))()
    np.testing.assert_array_equal(new, [[0, 1, 2, 3]])
    np.testing.assert_array_equal(old, np.reshape(np.arange(12), [3, 4]))
    # After the update, the slice is a range of its weight again.
    np.testing.assert_array_equal(slices[0].read(), [[0, 1, 2, 3]])


@pytest.mark.parametrize("taken", [True, False])
def test_a_branch_finds_and_sets_the_weight(taken: bool) -> None:
    component, slices = rows_and_elements()

    @tf.function
    def update(taken: tf.Tensor) -> tf.Tensor:
        with beside_weights(slices):
            slices[1].assign(tf.constant([40.0, 50.0]))
            tf.cond(taken, lambda: slices[1].assign_add(tf.ones([2])), lambda: None)
            return slices[1].read()

    expected = [41, 51] if taken else [40, 50]
    np.testing.assert_array_equal(update(tf.constant(taken)), expected)
    np.testing.assert_array_equal(component, np.reshape([0, 1, 2, 3, *expected, *range(6, 12)], [3, 4]))
