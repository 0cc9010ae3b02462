"""Lengths to which vectors of unknown size are padded; the contract tests the rest of the wire format."""

import bisect
import random

import tensorflow as tf

from strategies.collectives.tf_runtime import wire


def test_lengths_that_are_known_stay() -> None:
    assert [wire.padded_length(count) for count in (0, 1, 1000)] == [(1, 0), (1, 0), (1000, 0)]


def test_others_are_at_most_an_eighth_longer_and_tell_their_class() -> None:
    padded = tf.function(wire.padded_length, input_signature=[tf.TensorSpec([], tf.int32)])
    lengths = [*range(1, 8), *sorted(mantissa * 2**exponent for mantissa in range(8, 16) for exponent in range(28))]
    around = [power + more for power in (2**23, 2**24, 2**25, 2**30) for more in (-1, 0, 1)]
    counts = [*range(20), *around, 15 * 2**27, *random.Random(1).sample(range(15 * 2**27), 50)]
    for count in counts:
        length, size_class = map(int, padded(count))
        place = bisect.bisect_left(lengths, max(count, 1))
        assert (length, size_class) == (lengths[place], place + 1), count
        assert length <= max(count, 1) * 9 / 8
    assert len(lengths) < wire._NUM_SIZE_CLASSES
