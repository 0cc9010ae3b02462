"""Ranges of flat arrays as boxes: each item occurs once, in order."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.replica.flat_ranges import SLICE_BYTES, boxes, ranges


def test_ranges_are_equal_and_no_larger_than_a_slice() -> None:
    step = SLICE_BYTES // 4
    assert list(ranges(10, 4)) == [(0, 10)]
    assert list(ranges(2 * step, 4)) == [(0, step), (step, 2 * step)]
    third = 7 * step // 8
    assert list(ranges(3 * third, 4)) == [(0, third), (third, 2 * third), (2 * third, 3 * third)]
    assert list(ranges(0, 4)) == []


def test_what_has_no_equal_ranges_has_a_shorter_one() -> None:
    step, prime = SLICE_BYTES // 4, 2_750_159
    assert list(ranges(prime, 4)) == [(0, step), (step, 2 * step), (2 * step, prime)]


def test_boxes_of_a_table() -> None:
    assert list(boxes((2, 3), 1, 6)) == [(slice(0, 1), slice(1, 3)), (slice(1, 2), slice(0, 3))]
    assert list(boxes((4, 3), 0, 9)) == [(slice(0, 3), slice(0, 3))]
    assert list(boxes((), 0, 1)) == [()]


@pytest.mark.parametrize("shape", [(24,), (4, 6), (1, 24), (2, 3, 4), (2, 1, 3, 4), (24, 1)])
@pytest.mark.parametrize("step", [1, 5, 7, 24])
def test_boxes_hold_every_item_once_in_order(shape: tuple[int, ...], step: int) -> None:
    array = np.arange(24).reshape(shape)
    found = [
        item
        for begin in range(0, 24, step)
        for box in boxes(shape, begin, min(begin + step, 24))
        for item in array[box].reshape(-1).tolist()
    ]
    assert found == list(range(24))
