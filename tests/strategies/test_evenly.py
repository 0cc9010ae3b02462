"""Even division of a static number and of a tensor."""

import pytest
import tensorflow as tf

from strategies.evenly import even_bounds, even_sizes


@pytest.mark.parametrize(
    ("size", "count", "bounds"),
    [(0, 2, [0, 0, 0]), (1, 3, [0, 1, 1, 1]), (7, 3, [0, 3, 5, 7]), (8, 4, [0, 2, 4, 6, 8]), (5, 1, [0, 5])],
)
def test_larger_parts_come_first(size: int, count: int, bounds: list[int]) -> None:
    assert even_bounds(size, count) == bounds
    assert [int(bound) for bound in even_bounds(tf.constant(size), count, tf.minimum)] == bounds


def test_sizes_are_those_of_quotient_and_remainder() -> None:
    for size in range(20):
        for count in range(1, 9):
            assert even_sizes(size, count) == [size // count + (i < size % count) for i in range(count)]


def test_bounds_of_a_scalar_are_scalars_of_its_type() -> None:
    assert {bound.dtype for bound in even_bounds(tf.constant(7, tf.int64), 2, tf.minimum)} == {tf.int64}
