"""The work of a save is divided evenly, and each element is written once. Arrays stand for what all processes have."""

from __future__ import annotations

import numpy as np
import pytest

from strategies.saving import write_items as module
from strategies.saving.write_items import own_arrays, shape_and_dtype, write_items

VALUES = {
    "large": np.arange(60, dtype="float32").reshape(10, 6),
    "small": np.arange(4, dtype="float64"),
    "scalar": np.array(7, "int64"),
    "none": np.zeros((0, 3), "float32"),
    "flags": np.array([True, False]),
}


@pytest.mark.parametrize("num_processes", [1, 2, 3, 7])
def test_each_element_is_written_once(num_processes: int, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARED_BYTES", 100)
    items = write_items(VALUES, num_processes)
    # The same without a message: nothing depends on the process that asks.
    assert [(item.name, item.begin, item.end, item.rank) for item in items] == [
        (item.name, item.begin, item.end, item.rank) for item in write_items(VALUES, num_processes)
    ]
    found = {name: np.full(value.size, 99, value.dtype) for name, value in VALUES.items()}
    for rank in range(num_processes):
        for position, array in own_arrays(items, rank).items():
            item = items[position]
            assert item.rank == rank
            assert array.flags.c_contiguous
            whole = item.begin == 0 and item.end == VALUES[item.name].size
            assert array.shape == (VALUES[item.name].shape if whole else (item.end - item.begin,))
            found[item.name][item.begin : item.end] = array.reshape(-1)
    for name, value in VALUES.items():
        np.testing.assert_array_equal(found[name], value.reshape(-1))


def test_large_tensors_are_shared_and_small_ones_balanced(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(module, "SHARED_BYTES", 100)
    assert [(item.begin, item.end, item.rank) for item in write_items({"w": VALUES["large"]}, 4)] == [
        (0, 15, 0),
        (15, 30, 1),
        (30, 45, 2),
        (45, 60, 3),
    ]
    several = {f"w{i}": np.zeros(size, "float32") for i, size in enumerate((20, 8, 8, 4))}
    assert [item.rank for item in write_items(several, 2)] == [0, 1, 1, 1]


def test_arrays_of_others_are_copied() -> None:
    value = np.zeros(3)
    [array] = own_arrays(write_items({"w": value}, 1), 0).values()
    value += 1
    np.testing.assert_array_equal(array, np.zeros(3))
    assert shape_and_dtype([1.0, 2.0]) == ((2,), "float64")
