"""Arrays in files: the items that are read, and their use as NumPy arrays; ranges as boxes, with each item once."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from strategies.replica.stored_array import SLICE_BYTES, StoredArray, boxes, ranges


class Dataset:
    """Counts the items that are read."""

    def __init__(self, array: np.ndarray) -> None:
        self._array = array
        self.shape, self.dtype = array.shape, array.dtype
        self.read: list[int] = []

    def __getitem__(self, key: Any) -> np.ndarray:
        found = self._array[key]
        self.read.append(found.size)
        return found


def made() -> tuple[np.ndarray, Dataset, StoredArray]:
    array = np.arange(24, dtype="float32").reshape(4, 6)
    dataset = Dataset(array)
    return array, dataset, StoredArray(dataset)


def test_nothing_is_read_before_it_is_looked_at() -> None:
    array, dataset, stored = made()
    part = stored.part((slice(0, 4), slice(2, 4)))
    assert (stored.shape, stored.ndim, stored.size, len(stored), part.shape) == ((4, 6), 2, 24, 4, (4, 2))
    assert not tf.is_tensor(stored)
    assert not hasattr(stored, "is_tensor_like")
    assert dataset.read == []
    np.testing.assert_array_equal(part.flat(1, 6), array[:, 2:4].reshape(-1)[1:6])
    assert sum(dataset.read) == 5


def test_to_others_it_is_an_array() -> None:
    array, _, stored = made()
    np.testing.assert_array_equal(np.asarray(stored), array)
    np.testing.assert_array_equal(np.array(stored, "float64"), array)
    np.testing.assert_array_equal(stored + 1, array + 1)
    np.testing.assert_array_equal(stored[1], array[1])
    np.testing.assert_array_equal(stored.astype("int32").T, array.T)
    np.testing.assert_array_equal(tf.convert_to_tensor(stored), array)


def test_a_number_is_one_too() -> None:
    stored = StoredArray(Dataset(np.asarray(3)))
    assert (stored.shape, stored.flat(0, 1).tolist(), int(np.asarray(stored))) == ((), [3], 3)


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
