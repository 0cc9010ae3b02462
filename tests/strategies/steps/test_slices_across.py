"""Slices of two processes with equal values. Real exchanges are in every parity case of embeddings."""

from __future__ import annotations

import types
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.replica.slices import Lookups
from strategies.steps import slices_across as module
from strategies.steps.slices_across import slices_across

INDICES = [3, 0, 2**40 + 1]


def two_processes(gathered: list[tf.Tensor]) -> Any:
    def gather(value: tf.Tensor) -> tf.Tensor:
        gathered.append(value)
        return tf.concat([value, value], 0)

    return types.SimpleNamespace(num_processes=2, gather=gather)


@pytest.mark.parametrize("dtype", ["float16", "bfloat16", "float32", "float64"])
@pytest.mark.parametrize("row_shape", [(), (2,), (2, 3)])
@pytest.mark.parametrize("short", [True, False])
def test_indices_travel_beside_short_rows(
    dtype: str, row_shape: tuple[int, ...], short: bool, monkeypatch: pytest.MonkeyPatch
) -> None:
    if not short:
        monkeypatch.setattr(module, "SHORT_ROW_BYTES", 1)
    values = np.arange(3 * np.prod(row_shape, dtype=int)).reshape([3, *row_shape])

    def gathered_of(index_dtype: tf.DType, indices: list[int], number: int) -> None:
        messages: list[tf.Tensor] = []

        @tf.function(input_signature=[tf.TensorSpec([None, *row_shape], dtype), tf.TensorSpec([None], index_dtype)])
        def gathered(rows: tf.Tensor, indices: tf.Tensor) -> tf.IndexedSlices:
            slices = tf.IndexedSlices(rows, indices, tf.constant([9, *row_shape]))
            return slices_across(two_processes(messages), Lookups((), (slices,)))

        found = gathered(tf.cast(values[:number], dtype), tf.constant(indices[:number], index_dtype))
        assert len(messages) == (1 if short else 2)
        assert found.indices.dtype == index_dtype
        assert found.values.dtype == dtype
        np.testing.assert_array_equal(found.indices, indices[:number] * 2)
        np.testing.assert_array_equal(tf.cast(found.values, "int32"), np.concatenate([values[:number]] * 2))

    gathered_of(tf.int64, INDICES, 3)
    gathered_of(tf.int32, [3, 0, -1], 3)
    gathered_of(tf.int32, [3, 0, -1], 0)
