"""Batches that are padded to the size of the largest earlier one."""

from __future__ import annotations

import tensorflow as tf

from strategies._tf_internals import PerReplica
from strategies.batches.padding import Padding, Source, pad


def test_small_batches_get_copies_of_their_last_row() -> None:
    padding, source = Padding(), Source()

    @tf.function(input_signature=[tf.TensorSpec((None, 1), tf.int64), tf.TensorSpec((None,), tf.int64)])
    def inner(x: tf.Tensor, y: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        return pad([x, y], padding.read())

    padded = tf.function(lambda x, y: inner(x, y), reduce_retracing=True)
    seen = []
    for size in (3, 2, 4, 1):
        arguments = tf.range(size, dtype=tf.int64)[:, None], tf.range(size, dtype=tf.int64)
        padding.note(arguments, source)
        (x, y), own = padded(*arguments)
        assert x[:, 0].numpy().tolist() == y.numpy().tolist()
        seen.append((int(own), y.numpy().tolist()))
    assert seen == [(3, [0, 1, 2]), (2, [0, 1, 1]), (4, [0, 1, 2, 3]), (1, [0, 0, 0, 0])]


def test_the_size_is_that_of_the_largest_batch_from_the_same_iterator() -> None:
    padding = Padding()
    first, second = Source(), Source()
    replicas = {"scalar": tf.constant(1.0), "x": PerReplica((tf.ones((5, 2)), tf.ones((4, 2))))}
    seen = []
    for element, source in (
        (replicas, first),
        (tf.ones((3, 2)), first),
        (tf.ones((3, 2)), second),
        (tf.ones((4, 2)), None),
        (tf.ones((4, 2)), first),
        (tf.sparse.from_dense(tf.ones((4, 2))), second),
    ):
        padding.note(element, source)
        seen.append(int(tf.function(padding.read)()))
    assert seen == [5, 5, 3, 0, 5, 3]
