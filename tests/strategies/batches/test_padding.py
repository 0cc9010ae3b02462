"""Batches that are padded to the size of the largest one before."""

from __future__ import annotations

import tensorflow as tf

import strategies
from strategies.batches.padding import pad, size_variable


def test_small_batches_get_copies_of_their_last_row() -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        largest = size_variable()
    assert "CPU:0" in largest.device

    @tf.function(input_signature=[tf.TensorSpec((None, 1), tf.int64), tf.TensorSpec((None,), tf.int64)])
    def padded(x: tf.Tensor, y: tf.Tensor) -> tuple[list[tf.Tensor], tf.Tensor]:
        return pad([x, y], largest)

    seen = []
    for size in (3, 2, 4, 1):
        (x, y), own = padded(tf.range(size, dtype=tf.int64)[:, None], tf.range(size, dtype=tf.int64))
        assert x[:, 0].numpy().tolist() == y.numpy().tolist()
        seen.append((int(own), y.numpy().tolist()))
    assert seen == [(3, [0, 1, 2]), (2, [0, 1, 1]), (4, [0, 1, 2, 3]), (1, [0, 0, 0, 0])]
