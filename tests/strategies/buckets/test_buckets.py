"""Buckets, as literal tables and as properties over all small cases."""

import itertools

import pytest

from strategies.buckets.buckets import Bucket, make_buckets


def test_table_one_dtype() -> None:
    assert make_buckets([4, 4, 4, 4, 4], ["float32"] * 5, 8) == (
        Bucket((4, 3), "float32", 8),
        Bucket((2, 1), "float32", 8),
        Bucket((0,), "float32", 4),
    )


def test_table_large_gradient_stands_alone() -> None:
    assert make_buckets([2, 100, 2], ["float32"] * 3, 8) == (
        Bucket((2,), "float32", 2),
        Bucket((1,), "float32", 100),
        Bucket((0,), "float32", 2),
    )


def test_table_two_dtypes_come_in_the_order_they_complete() -> None:
    assert make_buckets([2, 2, 2, 2, 2], ["f4", "f2", "f4", "f2", "f2"], 4) == (
        Bucket((4, 3), "f2", 4),
        Bucket((1,), "f2", 2),
        Bucket((2, 0), "f4", 4),
    )


def test_table_fused_reductions_close_the_last_bucket_of_their_dtype() -> None:
    assert make_buckets([8, 8, 4, 2, 4, 4], ["f4", "f4", "f4", "f2", "f4", "i4"], 8, num_fused=3) == (
        Bucket((2,), "f4", 4),
        Bucket((1,), "f4", 8),
        Bucket((0, 4), "f4", 12),
        Bucket((3,), "f2", 2),
        Bucket((5,), "i4", 4),
    )
    assert make_buckets([4, 4], ["f4"] * 2, 1, num_fused=2) == (Bucket((0, 1), "f4", 8),)
    for num_fused in (-1, 3):
        with pytest.raises(ValueError, match=f"0 to 2, the number of tensors. Received: {num_fused}"):
            make_buckets([4, 4], ["f4"] * 2, 8, num_fused)


def test_no_gradients() -> None:
    assert make_buckets([], [], 1) == ()


@pytest.mark.parametrize("bucket_bytes", [1, 2, 3, 5, 100])
def test_properties(bucket_bytes: int) -> None:
    for length in range(5):
        for sizes in itertools.product([0, 1, 3], repeat=length):
            for dtypes in itertools.product(["a", "b"], repeat=length):
                buckets = make_buckets(sizes, dtypes, bucket_bytes)
                assert sorted(i for b in buckets for i in b.indices) == list(range(length))
                for b in buckets:
                    assert {dtypes[i] for i in b.indices} == {b.dtype}
                    assert b.num_bytes == sum(sizes[i] for i in b.indices)
                    assert b.num_bytes <= bucket_bytes or sum(sizes[i] > 0 for i in b.indices) == 1
                    assert list(b.indices) == sorted(b.indices, reverse=True)
                lowest = [b.indices[-1] for b in buckets]
                assert lowest == sorted(lowest, reverse=True)
                assert buckets == make_buckets(list(sizes), list(dtypes), bucket_bytes)


@pytest.mark.parametrize(
    ("sizes", "dtypes", "bucket_bytes", "message"),
    [
        ([1], ["a"], 0, "bucket_bytes must be at least 1 byte. Received: 0"),
        ([1, 2], ["a"], 4, "2 sizes and 1 dtypes"),
        ([1, -2], ["a", "a"], 4, "Received: -2 at index 1"),
    ],
)
def test_refusals(sizes: list[int], dtypes: list[str], bucket_bytes: int, message: str) -> None:
    with pytest.raises(ValueError, match=message):
        make_buckets(sizes, dtypes, bucket_bytes)
