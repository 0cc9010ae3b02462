"""Rows of tables on a parameter device are looked up on that device, as Keras looks them up.

Numbers of rows: `test_kinds` and `tests/strategies/batches/test_row_dependence.py`. Recomputed layers: `exercise.py`
and `tests/keras_ext/pipeline/test_remat.py`.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

import strategies

ROWS = np.arange(10, dtype="float32").reshape(5, 2)


@pytest.fixture
def strategy() -> strategies.CentralStorageStrategy:
    return strategies.CentralStorageStrategy(["CPU:1", "CPU:2"], "CPU:0")


def taken(strategy: tf.distribute.Strategy, take: Callable[[keras.Variable], Any]) -> tuple[Any, list[str]]:
    """Returns the first replica's result of taking from a table, and the types of the operations used."""
    with strategy.scope():
        table = keras.Variable(ROWS)

    @tf.function(autograph=False)
    def step() -> Any:
        return strategy.run(lambda: take(table))

    types = [op.type for op in step.get_concrete_function().graph.get_operations()]
    return strategy.experimental_local_results(step())[0], types


@pytest.mark.parametrize("indices", [[0, 3], [[4, -1], [-5, 2]], np.zeros((0,), "int64"), 2])
def test_of_indices(strategy: tf.distribute.Strategy, indices: Any) -> None:
    rows, types = taken(strategy, lambda table: keras.ops.take(table, indices, axis=0))
    np.testing.assert_array_equal(rows, np.take(ROWS, indices, axis=0))
    assert "ResourceGather" in types
    assert "ReadVariableOp" not in types


@pytest.mark.parametrize(
    ("take", "expected"),
    [
        (lambda table: keras.ops.take(table, [3, 0]), [3.0, 0.0]),
        (lambda table: keras.ops.take(table, [1], axis=1)[:2], [[1.0], [3.0]]),
        (lambda table: keras.ops.take(table * 2.0, [1], axis=0), [[4.0, 6.0]]),
        (lambda table: keras.ops.take(table, tf.ragged.constant([[1], [0]]), axis=0).to_tensor()[0], [[2.0, 3.0]]),
    ],
    ids=["flat", "columns", "a tensor", "ragged"],
)
def test_all_else_is_left_to_keras(strategy: tf.distribute.Strategy, take: Any, expected: Any) -> None:
    rows, types = taken(strategy, take)
    np.testing.assert_array_equal(rows, expected)
    assert "ResourceGather" not in types


def test_of_mixed_precision(strategy: tf.distribute.Strategy) -> None:
    with strategy.scope():
        layer = keras.layers.Embedding(5, 2, dtype="mixed_float16")
        layer.build()
        layer.set_weights([ROWS])
    rows = strategy.experimental_local_results(strategy.run(lambda: layer(tf.constant([4]))))[0]
    assert rows.dtype == tf.float16
    np.testing.assert_array_equal(rows, ROWS[4:])


def test_where_a_table_is_replaced(strategy: tf.distribute.Strategy) -> None:
    with strategy.scope():
        layer = keras.layers.Embedding(5, 2)
        layer.build()
        [table] = layer.trainable_variables
        rows, _ = layer.stateless_call([tf.constant(ROWS) + 1.0], [], tf.constant([0]))
    np.testing.assert_array_equal(rows, ROWS[:1] + 1.0)
    assert not np.array_equal(table.numpy(), ROWS)
