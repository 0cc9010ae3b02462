"""The row dependence of TensorFlow's tensors: in graphs, through function calls, and in eager execution."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import pytest
import tensorflow as tf
from keras import ops

from strategies.batches.row_context import Sizes
from strategies.batches.row_dependence import RowDependence
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark, marking

W = tf.Variable([[1.0, 2.0], [3.0, 4.0], [5.0, 6.0]])
LOSS = keras.losses.MeanSquaredError()
TABLE = keras.layers.Embedding(20, 2)
TABLE.build()
RECURRENT = keras.layers.Bidirectional(keras.layers.GRU(2))
RECURRENT.build((None, 3, 1))


def _views(x: tf.Tensor) -> tf.Tensor:
    return ops.concatenate([x, x * 2])


def _over_time(x: tf.Tensor) -> tf.Tensor:
    return RECURRENT(x[:, :, None])


def _slopes(x: tf.Tensor) -> tf.Tensor:
    with tf.GradientTape() as tape:
        tape.watch(x)
        score = ops.tanh((x + 1.0) @ W)
    return tape.gradient(score, x)


#: Functions of rows of three numbers, each with the kind of its result.
PROGRAMS: dict[str, tuple[Callable[[tf.Tensor], Any], Kind]] = {
    "penalty": (lambda x: tf.reduce_sum(tf.square(W)), Kind.SAME),
    "constant": (lambda x: tf.constant(2.0), Kind.SAME),
    "length of rows": (lambda x: ops.arange(ops.shape(x)[1]), Kind.SAME),
    "layer": (lambda x: ops.tanh(x @ W), Kind.ROWS),
    "normalised by the batch": (lambda x: x - ops.mean(x, axis=0), Kind.SHIFTED),
    "noise": (lambda x: tf.random.normal(tf.shape(x)), Kind.ROWS),
    "loss per row": (lambda x: keras.losses.mean_squared_error(x, x * 2), Kind.ROWS),
    "position of each row": (lambda x: ops.broadcast_to(ops.arange(3), ops.shape(x)), Kind.ROWS),
    "positions counted": (lambda x: ops.cumsum(ops.ones_like(x), axis=1) - 1, Kind.ROWS),
    "nothing for each row": (lambda x: ops.zeros_like(x, dtype="int32") + ops.arange(3), Kind.ROWS),
    "ones in a shape": (lambda x: ops.ones(ops.shape(x)), Kind.ROWS),
    "a table of its own": (lambda x: tf.constant([[0, 1], [2, 3], [4, 5], [6, 7]]), Kind.SAME),
    "attention": (lambda x: ops.einsum("bi,bj->bij", x, x), Kind.ROWS),
    "mean": (lambda x: ops.mean(x), Kind.MEAN),
    "mean of sums": (lambda x: 2.0 * tf.reduce_mean(tf.reduce_sum(x @ W, axis=1)) + 1.0, Kind.MEAN),
    "keras loss": (lambda x: LOSS(x, x * 2), Kind.MEAN),
    "sum over rows by their number": (lambda x: ops.sum(x) / ops.cast(ops.shape(x)[0], "float32"), Kind.MEAN),
    "shares of rows": (lambda x: ops.sum(x / tf.cast(tf.shape(x)[0], tf.float32)), Kind.MEAN),
    "rows by their weights": (lambda x: tf.reduce_sum(x) / tf.reduce_sum(tf.ones(tf.shape(x)[:1])), Kind.MEAN),
    "squares of shares": (lambda x: ops.sum(tf.square(x / tf.cast(tf.shape(x)[0], tf.float32))), Kind.UNKNOWN),
    "positions as numbers": (lambda x: ops.cast(tf.range(tf.shape(x)[0]), "float32")[:, None] * x, Kind.PAIRS),
    "mean and penalty": (lambda x: ops.mean(x) - ops.sum(W) + ops.mean(x @ W), Kind.MEAN),
    "sum of a list": (lambda x: ops.sum([ops.mean(x), ops.sum(W)]), Kind.MEAN),
    "sum": (lambda x: ops.sum(x), Kind.SUM),
    "sum by a constant": (lambda x: tf.nn.compute_average_loss(x[:, 0], global_batch_size=10), Kind.SUM),
    "mean times number": (lambda x: ops.mean(x) * ops.cast(ops.size(x), "float32"), Kind.SUM),
    "keras penalty": (lambda x: keras.regularizers.L1(0.1)(x), Kind.SUM),
    "sum and penalty": (lambda x: ops.sum(x) + ops.sum(W), Kind.MIXED),
    "root of a mean": (lambda x: ops.sqrt(ops.mean(x)), Kind.OTHER),
    "product of means": (lambda x: ops.sum(ops.mean(x, 0) * ops.mean(ops.square(x), 0)), Kind.OTHER),
    "largest": (lambda x: ops.max(x), Kind.MAX),
    "variance": (lambda x: ops.mean(ops.square(x - ops.mean(x, axis=0))), Kind.UNKNOWN),
    "standardised features": (lambda x: (x - ops.mean(x, 1, keepdims=True)) / ops.std(x, 1, keepdims=True), Kind.ROWS),
    "sorted": (lambda x: ops.sort(x, axis=0), Kind.UNKNOWN),
    "sorted features": (lambda x: ops.argsort(x, axis=1), Kind.ROWS),
    "hardest": (lambda x: ops.mean(ops.top_k(x[:, 0], 1)[0]), Kind.UNKNOWN),
    "flipped": (lambda x: ops.flip(x, axis=0), Kind.UNKNOWN),
    "flipped features": (lambda x: ops.flip(x, axis=1), Kind.ROWS),
    "rolled": (lambda x: ops.roll(x, 1, axis=0), Kind.UNKNOWN),
    "scanned": (lambda x: ops.associative_scan(ops.add, x, axis=0), Kind.UNKNOWN),
    "mixed up": (lambda x: ops.take(x, tf.random.shuffle(tf.range(tf.shape(x)[0])), axis=0), Kind.UNKNOWN),
    "softmax over rows": (lambda x: ops.softmax(x, axis=0), Kind.UNKNOWN),
    "norm over rows": (lambda x: ops.norm(x), Kind.OTHER),
    "first rows": (lambda x: x[:2], Kind.UNKNOWN),
    "neighbours": (lambda x: ops.mean(x[1:] - x[:-1]), Kind.UNKNOWN),
    "two views": (lambda x: ops.mean(ops.square(ops.subtract(*ops.split(_views(x), 2)))), Kind.MEAN),
    "groups of rows": (lambda x: ops.mean(ops.reshape(x, (2, -1, 3)), axis=0), Kind.UNKNOWN),
    "of each row its own": (lambda x: ops.take_along_axis(x, ops.cast(x[:, :1], "int32") * 0, axis=1), Kind.ROWS),
    "of each row by its position": (
        lambda x: tf.gather_nd(x, tf.stack([tf.range(tf.shape(x)[0]), tf.argmax(x, 1, tf.int32)], -1)),
        Kind.ROWS,
    ),
    "chosen rows": (lambda x: ops.sum(tf.boolean_mask(x, x[:, 0] > 1)), Kind.SUM),
    "mean of chosen rows": (lambda x: ops.mean(tf.boolean_mask(x, x[:, 0] > 1)), Kind.OTHER),
    "by segment": (lambda x: ops.segment_sum(x, ops.cast(x[:, 0], "int32") * 0, num_segments=2), Kind.SUM),
    "time first": (lambda x: ops.mean(ops.transpose(x) * W[:, :1], axis=0), Kind.ROWS),
    "loop over time": (lambda x: _over_time(x), Kind.ROWS),
    "loop over rows": (lambda x: tf.map_fn(tf.reduce_sum, x), Kind.ROWS),
    "scan over rows": (lambda x: tf.scan(lambda a, b: a + b, x), Kind.UNKNOWN),
    "branches": (lambda x: tf.cond(tf.reduce_sum(W) > 0, lambda: x * 2, lambda: x), Kind.ROWS),
    "branches of rows": (lambda x: tf.cond(tf.reduce_mean(x) > 0, lambda: x * 2, lambda: x), Kind.UNKNOWN),
    "noise of no row": (lambda x: tf.random.normal([7]), Kind.DRAWN),
    "noise by a seed": (lambda x: tf.random.stateless_normal([7], [1, 2]), Kind.SAME),
    "the same noise for rows": (lambda x: tf.random.stateless_normal(tf.shape(x), [1, 2]), Kind.UNKNOWN),
    "gradient of a penalty": (lambda x: tf.reduce_mean(_slopes(x) ** 2), Kind.MEAN),
    "pairs": (lambda x: ops.mean(ops.softmax(ops.matmul(x, ops.transpose(x)))), Kind.OTHER),
}
#: Eager loops, and loops whose eager operations do not show what they carry.
IN_GRAPHS_ONLY = ("branches of rows", "loop over rows", "scan over rows")
#: A static number of rows: the values are the same on all replicas, unless they are summed.
MAY_BE_ROWS = ("ones in a shape", "positions counted")
#: The count of rows is a Python number, or a constant, if the number of rows is static and no trainer's step runs.
COUNTED_BY_PYTHON = ("mean times number", "positions as numbers", "rows by their weights", "squares of shares")


# A scan unrolls into hundreds of operations.
@pytest.mark.parametrize(
    "name", [pytest.param(name, marks=pytest.mark.parity_all) if name == "scanned" else name for name in PROGRAMS]
)
def test_in_graphs_and_inside_functions(name: str) -> None:
    program, expected = PROGRAMS[name]
    found = []

    @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    def step(x: tf.Tensor) -> None:
        inner = tf.function(lambda y: program(y), autograph=False)
        found.append(RowDependence().kind(tf.convert_to_tensor(program(x))))
        found.append(RowDependence().kind(tf.convert_to_tensor(inner(x))))

    step.get_concrete_function()
    assert found == [expected, expected]


@pytest.mark.parametrize("name", sorted(PROGRAMS.keys() - {*COUNTED_BY_PYTHON, *IN_GRAPHS_ONLY, *MAY_BE_ROWS}))
def test_as_called_and_with_known_rows(name: str) -> None:
    program, expected = PROGRAMS[name]
    x = tf.reshape(tf.range(12.0), (4, 3)) + 1.0
    with marking([x], Sizes([4])):
        assert RowDependence([4]).kind(tf.convert_to_tensor(program(x))) is expected

    @tf.function(input_signature=[tf.TensorSpec([4, 3])], autograph=False)
    def step(x: tf.Tensor) -> None:
        assert RowDependence([4]).kind(tf.convert_to_tensor(program(x))) is expected

    step.get_concrete_function()


def test_nothing_is_known_of_what_was_made_outside() -> None:
    assert RowDependence().kind(tf.constant(1.0)) is Kind.ROWS
    assert RowDependence(is_marked=True).kind(tf.constant(1.0)) is Kind.SAME
    assert RowDependence().kind(3.0) is Kind.SAME
    assert RowDependence().kind(mark(tf.constant(1.0), Kind.SUM)) is Kind.SUM


def lookups(x: tf.Tensor) -> tf.IndexedSlices:
    """Returns the gradient of a table that is looked up by positions, by the batch, and by positions again."""
    with tf.GradientTape() as tape:
        ids = ops.cast(x[:, 0], "int32")
        found = TABLE(ids)[:, None] + TABLE(ops.arange(ops.shape(x)[1])) + TABLE(ops.arange(2, 5))
        value = ops.sum(ops.square(found))
    return tape.gradient(value, TABLE.embeddings.value)


def test_parts_of_slices() -> None:
    expected = [(Kind.ROWS, 4), (Kind.SAME, 3), (Kind.SAME, 3)]
    x = tf.reshape(tf.range(12.0), (4, 3))

    def sizes(slices: tf.IndexedSlices, rows: Any) -> list[tuple[Kind, Any]]:
        parts = RowDependence().parts(slices.indices)
        return sorted(((kind, 4 if kind is Kind.ROWS else size) for kind, size in parts), key=lambda p: p[0].name)

    @tf.function(input_signature=[tf.TensorSpec([None, 3])], autograph=False)
    def step(x: tf.Tensor) -> None:
        inner = tf.function(lambda y: lookups(y), autograph=False)
        assert sizes(lookups(x), None) == expected
        assert sizes(inner(x), None) == expected

    step.get_concrete_function()
    with marking([x], Sizes([4])):
        assert sizes(lookups(x), 4) == expected
