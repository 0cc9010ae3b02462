"""Outputs of replicas are weighted by their rows; tested on values of two replicas with three and one rows, or none."""

from __future__ import annotations

from typing import Any

import pytest
import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.batches.divided_batch import divide
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark, mark_reduced
from strategies.batches.row_warnings import DifferenceWarning
from strategies.batches.rows import Rows
from strategies.batches.shares import Combination, Share
from strategies.steps.layout import DataParallelGroup, ReplicaLayout
from strategies.steps.outputs import combined

LAYOUT = ReplicaLayout((DataParallelGroup(("CPU:0", "CPU:1")),))


def shares(combination: Combination, rows: tuple[Any, Any] = (3, 1)) -> list[Share]:
    return divide(Rows(rows, sum(rows)), 0, 2, 2, combination, lambda replica, graph: tf.constant(0.0))


def pair(first: Any, second: Any, kind: Kind = Kind.MEAN) -> PerReplica:
    return PerReplica(tuple(mark(tf.constant(value), kind) for value in (first, second)))


def test_a_training_step_gives_numbers_of_the_whole_batch() -> None:
    outputs = {
        "count": pair(3, 1, Kind.COUNT),
        "every": pair(True, False, Kind.MIN),
        "largest": pair(2.0, 6.0, Kind.MAX),
        "mean": pair(2.0, 6.0),
        "metric": mark_reduced(tf.constant(5.0)),
        "number": pair(1, 1, Kind.SAME),
        "smallest": pair(2, 6, Kind.MIN),
        "sum": pair(2.0, 6.0, Kind.SUM),
    }
    found = combined(outputs, shares("mean"), LAYOUT)
    assert found["number"] is outputs["number"]  # Left to Keras.
    names = ("count", "every", "largest", "mean", "metric", "smallest", "sum")
    assert [float(found[name]) for name in names] == [4.0, 0.0, 6.0, 3.0, 5.0, 2.0, 8.0]
    even = combined({name: outputs[name] for name in ("mean", "sum")}, shares("mean", (2, 2)), LAYOUT)
    assert [float(even[name]) for name in ("mean", "sum")] == [4.0, 8.0]


def test_what_has_rows_is_laid_end_to_end() -> None:
    rows = {"row": PerReplica((mark(tf.ones([3, 2]), Kind.ROWS), mark(tf.zeros([1, 2]), Kind.ROWS)))}
    assert combined(rows, shares("mean"), LAYOUT)["row"].shape == (4, 2)
    assert combined(rows, shares("mean", (3, 0)), LAYOUT)["row"].shape == (3, 2)


@pytest.mark.parametrize(
    ("output", "message"),
    [
        (pair(2.0, 6.0, Kind.OTHER), "'named', which a step returns, is neither a mean nor a sum over rows"),
        (pair(2.0, 6.0, Kind.UNKNOWN), "mix rows"),
        (pair(2.0, 6.0, Kind.DRAWN), "by each replica for itself"),
        (pair(2, 6), "that of one replica"),
        (pair("a", "b", Kind.ROWS), "that of one replica"),
        (3, "the number of rows of one replica"),
    ],
)
def test_what_cannot_be_combined_is_reported(output: Any, message: str) -> None:
    with pytest.warns(DifferenceWarning, match=message):
        combined({"named": output}, shares("mean"), LAYOUT)


@pytest.mark.parametrize("rows", [(4, 0), (4, tf.constant(0))], ids=["static", "dynamic"])
def test_a_replica_without_rows_counts_for_nothing(rows: Any) -> None:
    nan = float("nan")
    found = combined([pair(2.0, nan), pair(2.0, nan, Kind.SUM)], shares("mean", rows), LAYOUT)
    assert list(map(float, found)) == [2.0, 2.0]
    rows_of_both = PerReplica((tf.ones([4, 2]), tf.ones([1, 2])))
    predicted = combined(rows_of_both, shares("concat", rows), LAYOUT)
    assert [tuple(value.shape) for value in predicted.values] == [(4, 2), (0, 2)]
    looped = combined([rows_of_both, pair(1.0, 7.0)], shares(None, rows), LAYOUT)
    assert [float(tf.reduce_sum(output.values[1])) for output in looped] == [0.0, 0.0]


def test_without_uneven_rows_a_loop_of_ones_own_gets_what_replicas_returned() -> None:
    outputs = {"loss": pair(2.0, 6.0)}
    assert combined(outputs, shares(None, (2, 2)), LAYOUT) is outputs
