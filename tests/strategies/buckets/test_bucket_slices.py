"""Slices of buckets: literal tables, and properties of all of them."""

from __future__ import annotations

import itertools
import math
from collections.abc import Sequence

import pytest

from strategies.buckets import Slice, slice_buckets

FLOAT = ("float32", 4)


def table(shapes: Sequence[Sequence[int]], num_owners: int, **options: bool) -> list[list[tuple[int, int, int]]]:
    """Makes one bucket; returns for each owner (variable, begin, end) of its slices."""
    [bucket] = slice_buckets(shapes, [FLOAT] * len(shapes), num_owners, 2**20, **options)
    return [[(s.variable, s.begin, s.end) for s in bucket.owner_slices(owner)] for owner in range(num_owners)]


def test_a_bucket_is_cut_into_parts_of_one_length() -> None:
    # The last variable's gradient is ready first. 13 numbers for three owners: 4, 4 and 5.
    assert table([(1,), (5,), (7,)], 3) == [
        [(2, 0, 4)],
        [(2, 4, 7), (1, 0, 1)],
        [(1, 1, 5), (0, 0, 1)],
    ]


def test_cuts_are_at_rows_if_they_are_short() -> None:
    assert table([(1001, 2)], 2) == [[(0, 0, 1000)], [(0, 1000, 2002)]]
    # A row is a third of the whole: some owners would get twice as much as others.
    assert table([(3, 40)], 2) == [[(0, 0, 60)], [(0, 60, 120)]]


def test_whole_variables_go_to_the_owner_that_has_least() -> None:
    assert table([(4,), (10,), (5, 1), (2,)], 2, whole=True) == [[(1, 0, 10)], [(0, 0, 4), (2, 0, 5), (3, 0, 2)]]


def test_dtypes_and_large_variables_have_buckets_of_their_own() -> None:
    dtypes = [FLOAT, ("float16", 2), FLOAT, FLOAT]
    buckets = slice_buckets([(8,), (8,), (100,), (8,)], dtypes, 2, 64)
    assert [sorted({s.variable for s in bucket.slices}) for bucket in buckets] == [[3], [2], [1], [0]]


def test_variables_without_elements_are_in_no_bucket() -> None:
    assert slice_buckets([(0, 4), (0,)], [FLOAT] * 2, 2, 64) == ()
    assert table([(0, 4), (2,)], 2) == [[(1, 0, 1)], [(1, 1, 2)]]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("num_owners", [1, 2, 3, 4, 7])
def test_each_element_has_one_owner(num_owners: int, whole: bool) -> None:
    shapes = [(1,), (5,), (7,), (), (0,), (3, 3, 4, 8), (129, 2), (64, 64), (1000,)]
    dtypes = [FLOAT, ("float16", 2)] * 4 + [FLOAT]
    buckets = slice_buckets(shapes, dtypes, num_owners, 4096, whole=whole)
    every = sorted(itertools.chain.from_iterable(bucket.slices for bucket in buckets), key=_place)
    for variable, slices in itertools.groupby(every, key=lambda each: each.variable):
        own = list(slices)
        assert [s.begin for s in own] == [0, *(s.end for s in own[:-1])]
        assert own[-1].end == math.prod(shapes[variable])
    assert {s.variable for s in every} == {i for i, shape in enumerate(shapes) if math.prod(shape)}
    for bucket in buckets:
        assert len({dtypes[s.variable] for s in bucket.slices}) == 1
        sizes = [sum(s.size for s in bucket.owner_slices(owner)) for owner in range(num_owners)]
        assert bucket.part_size == max(sizes)
        if not whole:
            # Parts differ by the rounding of their length and by moves to the beginning of a row.
            assert max(sizes) - min(sizes) <= 1 + 0.01 * sum(sizes) / num_owners


def _place(each: Slice) -> tuple[int, int]:
    return each.variable, each.begin
