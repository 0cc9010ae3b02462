"""Files are those of the package ``safetensors``: each reads what the other has written."""

from __future__ import annotations

import zlib
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

from strategies.saving import safetensors_file
from strategies.saving.safetensors_file import SafetensorsReader, write

safetensors_numpy = pytest.importorskip("safetensors.numpy")

_RANDOM = np.random.default_rng(0)
ARRAYS = {
    "kernel/of a layer": _RANDOM.normal(size=(7, 3, 2)).astype("float32"),
    "scalar": np.array(3, "int64"),
    "none": np.zeros((0, 4), "float16"),
    "flags": np.array([True, False, True]),
    "bytes": np.arange(-5, 6, dtype="int8"),
    "odd": _RANDOM.normal(size=(3,)).astype("float64"),
}
SMALL = {
    "brain": _RANDOM.normal(size=(5,)).astype(ml_dtypes.bfloat16),
    "eight": _RANDOM.normal(size=(2, 2)).astype(ml_dtypes.float8_e4m3fn),
}


def test_the_package_reads_what_is_written(tmp_path: Path) -> None:
    path = tmp_path / "with spaces.safetensors"
    checksums = write(path, ARRAYS, {"format": "ours"})
    found = safetensors_numpy.load_file(path)
    assert found.keys() == ARRAYS.keys()
    for name, array in ARRAYS.items():
        assert (found[name].dtype, found[name].shape) == (array.dtype, array.shape)
        np.testing.assert_array_equal(found[name], array)
        assert checksums[name] == zlib.crc32(array.tobytes())


def test_what_the_package_writes_is_read(tmp_path: Path) -> None:
    path = tmp_path / "theirs.safetensors"
    safetensors_numpy.save_file(ARRAYS, path, {"who": "they"})
    reader = SafetensorsReader(path)
    assert reader.metadata == {"who": "they"}
    for name, array in ARRAYS.items():
        np.testing.assert_array_equal(reader.read(name, 0, array.size).reshape(array.shape), array)
        assert reader.checksum(name) == zlib.crc32(array.tobytes())
    np.testing.assert_array_equal(reader.read("bytes", 3, 5), ARRAYS["bytes"][3:5])
    with pytest.raises(ValueError, match=r"'bytes' has shape \(11,\).*elements 3 to 12"):
        reader.read("bytes", 3, 12)
    with pytest.raises(ValueError, match="has no tensor 'other'"):
        reader.read("other", 0, 1)


def test_small_floats(tmp_path: Path) -> None:
    write(tmp_path / "file", SMALL, {})
    reader = SafetensorsReader(tmp_path / "file")
    for name, array in SMALL.items():
        found = reader.read(name, 0, array.size).reshape(array.shape)
        assert found.dtype == array.dtype
        np.testing.assert_array_equal(found, array)


def test_pieces_of_large_arrays(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(safetensors_file, "_CHUNK_BYTES", 40)
    checksums = write(tmp_path / "file", ARRAYS, {})
    assert all(checksums[name] == zlib.crc32(array.tobytes()) for name, array in ARRAYS.items())
    reader = SafetensorsReader(tmp_path / "file")
    assert {name: reader.checksum(name) for name in ARRAYS} == checksums


def test_refuses(tmp_path: Path) -> None:
    with pytest.raises(ValueError, match="'text' of dtype"):
        write(tmp_path / "file", {"text": np.array(["a"])}, {})
    path = tmp_path / "file"
    write(path, ARRAYS, {})
    whole = path.read_bytes()
    for damaged, words in (
        (whole[:-1], "is to have"),
        (whole[:20], "header of"),
        (b"", "header of"),
        (b"\xff" * 40, "header of"),
    ):
        path.write_bytes(damaged)
        with pytest.raises(ValueError, match=words):
            SafetensorsReader(path)
