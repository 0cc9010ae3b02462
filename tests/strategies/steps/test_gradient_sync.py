"""Synchronization of gradients for the update, tested with two replicas and a reduction of its own."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.batches.divided_batch import divide
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark
from strategies.batches.rows import Rows
from strategies.batches.shares import Share
from strategies.steps import device_reductions
from strategies.steps.device_reductions import DeviceReductions
from strategies.steps.gradient_sync import Accumulation, GradientSync
from strategies.steps.layout import DataParallelGroup, ReplicaLayout
from strategies.steps.reductions import FusedReduction
from strategies.steps.waiting import Waits

LAYOUT = ReplicaLayout((DataParallelGroup(("CPU:0", "CPU:1")),))


def sums(op: Any, pairs: list[tuple[Any, Any]], devices: tuple[str, ...], options: Any) -> list[Any]:
    assert op == tf.distribute.ReduceOp.SUM
    return [PerReplica((tf.add_n(list(value.values)),) * 2) for value, _ in pairs]


def sync() -> GradientSync:
    return GradientSync(LAYOUT, DeviceReductions(LAYOUT, sums), Waits(2))


def shares(*rows: int) -> list[Share]:
    return divide(Rows(rows, sum(rows)), 0, 2, 2, "mean", lambda replica, graph: tf.constant(0.0))


def pair(first: Any, second: Any) -> PerReplica:
    return PerReplica((tf.constant(first), tf.constant(second)))


def slices(index: int, value: float) -> tf.IndexedSlices:
    return tf.IndexedSlices(tf.constant([[value]]), mark(tf.constant([index]), Kind.ROWS), tf.constant([4, 1]))


def test_sums_tensors_and_slices_and_leaves_what_is_summed() -> None:
    given = [pair(1.0, 2.0), None, tf.constant(9.0), PerReplica((slices(0, 1.0), slices(2, 5.0)))]
    [total, nothing, summed, sparse], _ = sync().synchronized(given, None, shares(2, 2))
    assert float(total.values[1]) == 3.0
    assert nothing is None
    assert float(summed) == 9.0
    dense = tf.convert_to_tensor(sparse.values[1])
    np.testing.assert_array_equal(tf.reshape(dense, [-1]), [1.0, 0.0, 5.0, 0.0])


def test_a_replica_without_rows_adds_nothing() -> None:
    [total], _ = sync().synchronized([pair(1.0, float("nan"))], None, shares(2, 0))
    assert float(total.values[0]) == 1.0
    [outside_of_steps], _ = sync().synchronized([pair(1.0, 4.0)], None, [])
    assert float(outside_of_steps.values[0]) == 5.0


def test_gathers_until_due_then_sums_and_empties() -> None:
    class Accumulator:
        values = (tf.Variable(10.0), tf.Variable(20.0))

    def after(is_due: bool) -> list[float]:
        accumulation = Accumulation([Accumulator()], tf.constant(is_due))
        [found], _ = sync().synchronized([pair(1.0, 2.0)], None, shares(2, 2), accumulation)
        return [float(value) for value in found.values]

    assert after(is_due=False) == [1.0, 2.0]
    assert [float(value) for value in Accumulator.values] == [10.0, 20.0]
    assert after(is_due=True) == [33.0, 33.0]
    assert [float(value) for value in Accumulator.values] == [0.0, 0.0]


def test_a_conditional_around_each_bucket(monkeypatch: pytest.MonkeyPatch) -> None:
    """A sum need not wait for the gradients of later buckets to know that a replica has no rows."""
    monkeypatch.setattr(device_reductions, "GPU_BUCKET_BYTES", 8)
    summing = sync()

    @tf.function(input_signature=[tf.TensorSpec([], tf.int32)])
    def step(rows: tf.Tensor) -> Any:
        own = divide(Rows((2, rows), rows + 2), 0, 2, 2, "mean", lambda replica, graph: tf.constant(0.0))
        given = [pair(1.0, 2.0), pair([3.0, 4.0], [5.0, 6.0]), PerReplica((slices(0, 1.0), slices(2, 5.0)))]
        [first, second, sparse], _ = summing.synchronized(given, None, own)
        return first.values[0], second.values[0], tf.reshape(tf.convert_to_tensor(sparse.values[0]), [-1])

    graph = step.get_concrete_function().graph
    assert sum(op.type in ("If", "StatelessIf") for op in graph.get_operations()) == 3
    expected = {0: (1.0, [3.0, 4.0], [1.0, 0.0, 0.0, 0.0]), 1: (3.0, [8.0, 10.0], [1.0, 0.0, 5.0, 0.0])}
    for rows, values in expected.items():
        for found, value in zip(step(tf.constant(rows)), values, strict=True):
            np.testing.assert_array_equal(found, value)


def test_fused_reductions_need_a_message_of_the_gradients() -> None:
    fused = [FusedReduction([tf.constant(1.0), tf.constant(2.0)])]
    _, [total] = sync().synchronized([pair(1.0, 2.0)], None, shares(2, 2), fused=fused)
    assert float(total) == 3.0
    with pytest.raises(ValueError, match="Received: 1 of them"):
        sync().synchronized([], None, shares(2, 2), Accumulation([], True), fused)
