"""Gradients that are rounded where they are computed: they are taken before rounding, and rounded after their sum."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.batches.row_dependence import RowDependence
from strategies.replica.rounding import as_unrounded, rounded, rounding_of, unrounded

ROWS = tf.constant(np.random.default_rng(0).standard_normal((64, 3)), tf.float32)


def gradient_of(bias: tf.Variable, rows: tf.Tensor, dtype: Any) -> tf.Tensor:
    with tf.GradientTape() as tape:
        added = rows + tf.cast(tf.cast(bias, dtype), tf.float32)
        loss = tf.reduce_sum(added * rows)
    return tape.gradient(loss, bias)


@pytest.mark.parametrize("dtype", [tf.bfloat16, tf.float16])
def test_terms_are_summed_before_they_are_rounded(dtype: Any) -> None:
    bias = tf.Variable([0.5, 1.5, 2.5])

    @tf.function
    def terms_and_whole() -> Any:
        terms = [unrounded(gradient_of(bias, rows, dtype), bias, RowDependence()) for rows in tf.split(ROWS, 2)]
        assert [rounding_of(term) for term in terms] == [dtype, dtype]
        # Functions return new tensors: the variable keeps the dtype of the rounding.
        assert rounding_of(tf.identity(terms[0])) is None
        assert rounding_of(as_unrounded([tf.identity(terms[0])], [bias])[0]) == dtype
        return rounded(tf.add_n(terms), dtype), gradient_of(bias, ROWS, dtype), tf.add_n(terms)

    total, whole, exact = terms_and_whole()
    np.testing.assert_array_equal(total, whole)
    assert float(tf.reduce_max(tf.abs(total - exact))) > 1e-4


def test_what_was_not_rounded_is_left() -> None:
    kernel = tf.Variable([0.5, 1.5, 2.5])

    @tf.function
    def gradients() -> Any:
        with tf.GradientTape() as tape:
            loss = tf.reduce_sum(ROWS * kernel)
        whole = tape.gradient(loss, kernel)
        of_half = gradient_of(kernel, ROWS, tf.float64)
        assert unrounded(whole, kernel, RowDependence()) is whole
        assert unrounded(of_half, kernel, RowDependence()) is of_half
        assert unrounded(None, kernel, RowDependence()) is None
        return whole

    assert rounding_of(gradients()) is None
    assert rounded(ROWS, None) is ROWS
    # Eager tensors do not show the op that made them.
    eager = gradient_of(kernel, ROWS, tf.bfloat16)
    assert unrounded(eager, kernel, RowDependence()) is eager
