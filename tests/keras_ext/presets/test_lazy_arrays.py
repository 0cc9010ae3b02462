"""Lazy arrays and files of tensors: NumPy's results, and no more reads than needed."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from keras_ext.presets.lazy_arrays import LazyArray
from keras_ext.presets.safetensors import SafetensorsFile
from strategies import layer_api
from tests.keras_ext.presets.folders import write_safetensors

VALUE = np.arange(24, dtype="float32").reshape(4, 6)


class Counted:
    """A dataset that counts the elements that are read."""

    def __init__(self, value: np.ndarray) -> None:
        self.value, self.shape, self.dtype, self.read = value, value.shape, value.dtype, 0

    def __getitem__(self, where: Any) -> np.ndarray:
        self.read += self.value[where].size
        return np.array(self.value[where])


FUNCTIONS: list[Callable[[Any], Any]] = [
    lambda x: np.reshape(np.transpose(x), (2, 3, 4)),
    lambda x: x.T.reshape(3, -1),
    lambda x: np.transpose(x, axes=(1, 0)).astype("float64"),
    lambda x: np.reshape(x[:, 2:4], (2, 2, 2)),
    lambda x: x[1:][:, 1:3],
    lambda x: x[-1],
    lambda x: x[::2],
    lambda x: np.stack([x, x + 1], axis=0),
    lambda x: np.concatenate([x, 2 * x], axis=-1),
    lambda x: np.exp(x) - 1,
    lambda x: x.transpose(1, 0)[2:4],
]


@pytest.mark.parametrize("function", FUNCTIONS)
def test_functions_of_numpy_are_lazy(function: Callable[[Any], Any]) -> None:
    dataset = Counted(VALUE)
    found, expected = function(LazyArray(dataset)), function(VALUE)
    assert isinstance(found, LazyArray)
    assert isinstance(found, layer_api.StoredArray)
    assert (found.shape, found.dtype, dataset.read) == (expected.shape, expected.dtype, 0)
    np.testing.assert_array_equal(np.asarray(found), expected)
    dataset.read = 0
    box = (slice(1, 2), *(slice(0, size) for size in expected.shape[1:]))
    np.testing.assert_array_equal(np.asarray(found.part(box)), expected[1:2])
    np.testing.assert_array_equal(found.flat(1, 4), expected.reshape(-1)[1:4])
    # Each of the two at most the sources once.
    assert dataset.read <= 4 * VALUE.size


def test_a_box_reads_only_itself() -> None:
    dataset = Counted(VALUE)
    np.testing.assert_array_equal(np.asarray(LazyArray(dataset)[1:3, 4:]), VALUE[1:3, 4:])
    assert dataset.read == 4


def test_wrong_shapes_are_refused_at_once_and_numbers_are_returned() -> None:
    array = LazyArray(Counted(VALUE))
    with pytest.raises(ValueError, match="reshape"):
        np.reshape(array, (5, 5))
    with pytest.raises(ValueError, match="must match exactly"):
        np.concatenate([array, array[:, 1:]], axis=0)
    assert np.sum(array) == VALUE.sum()
    assert np.shape(array) == (4, 6)


@pytest.mark.parametrize("dtype", ["float32", "float16", "bfloat16", "int64"])
def test_files_of_tensors(dtype: str, tmp_path: Path) -> None:
    tensors = {"a": VALUE.astype(dtype), "scalar": np.array(3, dtype), "empty": np.zeros((0, 2), dtype)}
    tensors["b"] = tensors["a"][:, ::-1]
    write_safetensors(tmp_path / "file", tensors)
    file = SafetensorsFile(tmp_path / "file")
    assert file.keys() == list(tensors)
    for name, tensor in tensors.items():
        found = file.get_tensor(name)
        assert (found.shape, found.dtype) == (tensor.shape, tensor.dtype)
        np.testing.assert_array_equal(np.asarray(found), tensor)
    np.testing.assert_array_equal(np.asarray(file.get_tensor("b")[1:3, 2:5]), tensors["b"][1:3, 2:5])
    assert file.unused() == {}
    with pytest.raises(KeyError):
        file.get_tensor("c")


def test_damaged_files_are_refused(tmp_path: Path) -> None:
    path = tmp_path / "file"
    write_safetensors(path, {"a": VALUE})
    whole = path.read_bytes()
    for damaged in (whole[:-1], whole + b"0", whole[:20], b"", whole.replace(b"[4, 6]", b"[4, 7]")):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match="file"):
            SafetensorsFile(path)
