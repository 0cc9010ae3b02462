"""The shards of weights from which numbers are computed: in graphs, in branches and loops, and in eager execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import pytest
import tensorflow as tf

from strategies.batches.row_context import Sizes
from strategies.batches.row_dependence import RowDependence
from strategies.batches.row_kinds import Form, ShardId
from strategies.batches.row_marks import mark_shard, marking

#: Two shards of one weight, a shard of a second one, whose other shard is left out, and a whole weight.
A0, A1, B0 = (1, 0, 2), (1, 1, 2), (2, 0, 2)
SHARDS: tuple[ShardId | None, ...] = (A0, A1, B0, None)
VALUES = [[1.0, 2.0], [3.0, 4.0], [5.0, 6.0], [7.0, 8.0]]


def _twice(x: Any, a: Any, b: Any) -> Any:
    def body(i: Any, total: Any) -> Any:
        return i + 1, total + tf.reduce_sum(x)

    return tf.while_loop(lambda i, total: i < 2, body, [0, tf.reduce_sum(a) + tf.reduce_sum(b)])[1]


#: By name: a function of A0, A1, B0 and the whole weight, and the form of its result; None where it is that of whole
#: weights.
CASES: dict[str, tuple[Callable[[Any, Any, Any, Any], Any], Form | None]] = {
    "elements": (lambda a, a1, b, w: 0.9 * a + tf.where(a > 0, a, w) ** 2, Form.ELEMENTS),
    "of two weights": (lambda a, a1, b, w: a * b, Form.ELEMENTS),
    "of two shards": (lambda a, a1, b, w: a * a1, Form.OTHER),
    "in another shape": (lambda a, a1, b, w: tf.transpose(tf.reshape(a, [2, 1]))[..., None], Form.ELEMENTS),
    "one element": (lambda a, a1, b, w: a[0], Form.OTHER),
    "dense": (lambda a, a1, b, w: tf.convert_to_tensor(tf.IndexedSlices(a, [0, 0], [1])), Form.ELEMENTS),
    "their shape": (lambda a, a1, b, w: tf.cast(tf.shape(a)[0], tf.float32) * tf.ones_like(a), None),
    "whole weight": (lambda a, a1, b, w: tf.linalg.norm(tf.concat([a, a1], 0)), None),
    "sum of one": (lambda a, a1, b, w: -2.0 * tf.reduce_sum(a * a) / tf.reduce_sum(w), Form.SUM),
    "sum of all": (lambda a, a1, b, w: tf.sqrt(tf.nn.l2_loss(a) + tf.nn.l2_loss(a1)), None),
    "sums in a list": (lambda a, a1, b, w: tf.linalg.global_norm([a, w, a1, w]), None),
    "sum and others": (lambda a, a1, b, w: 1.0 + tf.reduce_sum(a) + tf.reduce_sum(w) + tf.reduce_sum(a1), None),
    "sum from zero": (lambda a, a1, b, w: sum(0.0 + tf.reduce_sum(each) for each in (a, a1)), None),
    "a constant each": (lambda a, a1, b, w: tf.reduce_sum(a) + 1.0 + (tf.reduce_sum(a1) + 1.0), Form.OTHER),
    "of another weight": (lambda a, a1, b, w: tf.reduce_sum(a) + tf.reduce_sum(b), Form.SUM),
    "twice of one": (lambda a, a1, b, w: tf.reduce_sum(a) + tf.reduce_sum(a * a), Form.SUM),
    "norms": (lambda a, a1, b, w: tf.norm(a) + tf.norm(a1), Form.OTHER),
    "means": (lambda a, a1, b, w: tf.reduce_mean(tf.stack([tf.reduce_mean(a), tf.reduce_mean(a1)])), Form.OTHER),
    "mean of sums": (lambda a, a1, b, w: tf.reduce_mean(tf.stack([tf.reduce_sum(a), tf.reduce_sum(a1)])), Form.OTHER),
    "largest": (lambda a, a1, b, w: tf.maximum(tf.reduce_max(a), tf.reduce_max(a1)), None),
    "largest and whole": (lambda a, a1, b, w: tf.reduce_max([tf.reduce_max(x) for x in (a, w, a1)]), None),
    "sum of largest": (lambda a, a1, b, w: tf.reduce_max(a) + tf.reduce_max(a1), Form.OTHER),
    "smallest of one": (lambda a, a1, b, w: tf.reduce_min(a), Form.MIN),
    "all finite": (lambda a, a1, b, w: tf.reduce_all([tf.reduce_all(a > 0), tf.reduce_all(a1 > 0)]), None),
    "any": (lambda a, a1, b, w: tf.logical_or(tf.reduce_any(a > 9), tf.reduce_any(a1 > 9)), None),
    "by its own norm": (lambda a, a1, b, w: a / tf.norm(a), Form.OTHER),
    "by the whole norm": (lambda a, a1, b, w: a / tf.linalg.global_norm([a, a1]), Form.ELEMENTS),
    "product": (lambda a, a1, b, w: tf.linalg.matvec(a[None], w), Form.OTHER),
    "largest of flat ones": (lambda a, a1, b, w: tf.math.top_k(tf.concat([a, a1, w], 0), 2).values, None),
    "count": (lambda a, a1, b, w: tf.add_n([tf.math.count_nonzero(x, dtype="int32") for x in (a, a1)]), None),
    "chosen": (lambda a, a1, b, w: tf.cond(w[0] > 0, lambda: a, lambda: tf.zeros_like(a)), Form.ELEMENTS),
    "sums in branches": (lambda a, a1, b, w: tf.cond(w[0] > 0, lambda: tf.reduce_sum(a), lambda: a1[0]), Form.OTHER),
    "by a branch": (lambda a, a1, b, w: tf.cond(tf.norm(a) > 0, lambda: w, lambda: 2 * w), Form.OTHER),
    "in a loop": (lambda a, a1, b, w: _twice(w, a, b), Form.SUM),
    "in a function": (lambda a, a1, b, w: tf.function(tf.norm, autograph=False)(a), Form.OTHER),
}
#: Cases that eager execution cannot follow: Python has chosen the branch.
ONLY_IN_GRAPHS = ("by a branch", "sums in branches")


def _values() -> list[Any]:
    return [
        value if shard is None else mark_shard(value, shard)
        for value, shard in zip(map(tf.constant, VALUES), SHARDS, strict=True)
    ]


@pytest.mark.parametrize(("compute", "form"), CASES.values(), ids=CASES)
def test_in_graphs(compute: Callable[..., Any], form: Form | None) -> None:
    with tf.Graph().as_default():
        values = [
            tf.zeros([2]) if shard is None else mark_shard(tf.compat.v1.placeholder(tf.float32, [2]), shard)
            for shard in SHARDS
        ]
        found = RowDependence().shards(compute(*values))
        assert (None if found is None else found.form) is form


@pytest.mark.parametrize("name", sorted(CASES.keys() - ONLY_IN_GRAPHS))
def test_in_eager_execution(name: str) -> None:
    compute, form = CASES[name]
    with marking((), Sizes()):
        found = RowDependence(is_marked=True).shards(compute(*_values()))
    assert (None if found is None else found.form) is form


def test_what_variables_return() -> None:
    variable = tf.Variable([1.0, 2.0])
    mark_shard(variable.handle, A0)

    @tf.function(autograph=False)
    def step() -> Any:
        for value in (variable.value(), tf.convert_to_tensor(variable), variable + 1.0):
            found = RowDependence().shards(value)
            assert found is not None
            assert (set(found.shards), found.form) == ({A0}, Form.ELEMENTS)
        return variable + 1.0

    step()


def test_rows_are_computed_from_all_shards() -> None:
    @tf.function(autograph=False)
    def step(x: Any) -> None:
        kernel = mark_shard(tf.ones([2, 3]), A0)
        found = RowDependence()
        assert found.shards(tf.matmul(x, kernel)) is None
        assert found.shards(tf.reduce_mean(tf.matmul(x, kernel))) is None
        loss = found.shards(tf.reduce_mean(x) + tf.norm(kernel))
        assert loss is not None
        assert loss.form is Form.OTHER

    step(tf.ones([4, 2]))
