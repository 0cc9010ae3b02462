"""The layout of buckets of slices in messages; reduce-scatters are in tests/strategies/parity/test_sharded.py."""

from __future__ import annotations

import numpy as np
import pytest
import tensorflow as tf

from strategies.buckets import SlicedBucket, slice_buckets
from strategies.sharding.partition import all_laid_out, laid_out, merged


def only_bucket(*shapes: tuple[int, ...], num_owners: int) -> SlicedBucket:
    [bucket] = slice_buckets(shapes, [("float32", 4)] * len(shapes), num_owners, 2**20)
    return bucket


@pytest.mark.parametrize("num_owners", [1, 2, 3, 4])
@pytest.mark.parametrize("shapes", [[(8, 4)], [(4,), (7, 3), (5,)], [(1,), (2,)]])
def test_all_parts_are_those_of_each_owner(shapes: list[tuple[int, ...]], num_owners: int) -> None:
    bucket = only_bucket(*shapes, num_owners=num_owners)
    whole = {i: tf.random.uniform(shape) for i, shape in enumerate(shapes)}
    parts = {each: tf.reshape(whole[each.variable], [-1])[each.begin : each.end] for each in bucket.slices}
    expected = [laid_out(bucket, [owner], parts, tf.float32) for owner in range(num_owners)]
    np.testing.assert_array_equal(all_laid_out(bucket, whole, tf.float32), np.concatenate(expected))
    # A variable without a gradient counts as zeros.
    del whole[0]
    zeros = {each: parts[each] * float(each.variable != 0) for each in bucket.slices}
    expected = [laid_out(bucket, [owner], zeros, tf.float32) for owner in range(num_owners)]
    np.testing.assert_array_equal(all_laid_out(bucket, whole, tf.float32), np.concatenate(expected))


def test_a_bucket_that_is_one_weight_is_not_copied() -> None:
    bucket = only_bucket((8, 4), num_owners=2)

    @tf.function
    def flat(value: tf.Tensor) -> tf.Tensor:
        return all_laid_out(bucket, {0: value}, tf.float32)

    graph = flat.get_concrete_function(tf.TensorSpec([8, 4])).graph
    assert not {op.type for op in graph.get_operations()} & {"ConcatV2", "Pack"}


def test_ranges_that_go_on_are_one() -> None:
    assert merged([]) == []
    assert merged([(0, 4, 0), (4, 2, 4), (6, 1, 6)]) == [(0, 7, 0)]
    # After padding, and at another offset of the variable.
    assert merged([(0, 3, 0), (4, 2, 3), (6, 1, 9)]) == [(0, 3, 0), (4, 2, 3), (6, 1, 9)]
