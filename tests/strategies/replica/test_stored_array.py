"""Arrays in files: the items that are read, and their use as NumPy arrays."""

from __future__ import annotations

from typing import Any

import numpy as np
import tensorflow as tf

from strategies.replica.stored_array import StoredArray


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
