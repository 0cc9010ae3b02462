"""A disk that is full in the middle of a file: the caller gets one OSError, and the next file works."""

from __future__ import annotations

import errno
import resource
import signal
from collections.abc import Iterator
from pathlib import Path

import h5py
import keras
import numpy as np
import pytest

import strategies
from strategies.saving.late_errors import LateErrorFile, late_errors, open_late
from strategies.testing.faults.striking import limit_files, unlimit_files


@pytest.fixture
def full_after_4000_bytes() -> Iterator[None]:
    before = signal.getsignal(signal.SIGXFSZ), resource.getrlimit(resource.RLIMIT_FSIZE)
    limit_files(4000, deadly=False)
    yield
    unlimit_files()
    signal.signal(signal.SIGXFSZ, before[0])
    resource.setrlimit(resource.RLIMIT_FSIZE, before[1])


def test_what_hdf5_writes_can_be_read(tmp_path: Path) -> None:
    path = tmp_path / "file.h5"
    with late_errors(), h5py.File(open_late(path, "w"), "w") as file:
        file.create_group("a")["b"] = np.arange(5000)
    with late_errors(), h5py.File(open_late(path, "a"), "a") as file:
        file["a"]["c"] = file["a"]["b"][1:3]
    with h5py.File(path) as file:
        assert file["a"]["b"][-1] == 4999
        assert list(file["a"]["c"]) == [1, 2]


def test_outside_nothing_is_opened(tmp_path: Path) -> None:
    assert open_late(tmp_path / "file", "w") is None
    assert not (tmp_path / "file").exists()


@pytest.mark.usefixtures("full_after_4000_bytes")
def test_the_first_error_is_raised_at_the_end(tmp_path: Path) -> None:
    path, is_written = tmp_path / "file.h5", False

    def write() -> None:
        nonlocal is_written
        with late_errors(), h5py.File(open_late(path, "w"), "w") as file:
            file["a"] = np.arange(5000)
            file["b"] = np.arange(5000)
            is_written = True

    with pytest.raises(OSError, match=r"file\.h5") as caught:
        write()
    assert is_written
    assert (caught.value.errno, caught.value.filename) == (errno.EFBIG, str(path))


@pytest.mark.parametrize(("error", "expected"), [(KeyError("a"), KeyError), (OSError("b"), OSError)])
def test_an_error_of_the_program(error: Exception, expected: type[Exception], tmp_path: Path) -> None:
    files = []

    def write() -> None:
        with late_errors():
            files.append(open_late(tmp_path / "file", "w"))
            files[0].error = OSError(errno.ENOSPC, "full")  # type: ignore[union-attr]
            raise error

    with pytest.raises(expected) as caught:
        write()
    assert files[0] is not None
    assert files[0].closed
    # A read of data that were never written fails because of the first error, which is the one to report.
    assert expected is KeyError or caught.value is files[0].error


def test_a_file_that_cannot_be_made(tmp_path: Path) -> None:
    with pytest.raises(FileNotFoundError):
        LateErrorFile(tmp_path / "none" / "file", "w")


@pytest.mark.parametrize("name", ["model.weights.h5", "model.weights.json"])
def test_a_model_is_saved_again_once_there_is_room(name: str, tmp_path: Path) -> None:
    with strategies.MirroredStrategy(["CPU:0", "CPU:1"]).scope():
        model = keras.Sequential([keras.Input((30,)), keras.layers.Dense(40), keras.layers.Dense(30)])
    sizes = {"max_shard_size": 1e-5} if name.endswith("json") else {}
    limit_files(4000, deadly=False)
    try:
        with pytest.raises(OSError, match="File too large"):
            model.save_weights(tmp_path / name, **sizes)
    finally:
        unlimit_files()
    model.save_weights(tmp_path / name, overwrite=True, **sizes)
    kept = model.get_weights()
    model.set_weights([np.zeros_like(weight) for weight in kept])
    model.load_weights(tmp_path / name)
    for weight, expected in zip(model.get_weights(), kept, strict=True):
        np.testing.assert_array_equal(weight, expected)


def test_a_closed_file_is_flushed_without_an_error(tmp_path: Path) -> None:
    """HDF5 flushes a closed file when it frees a file that was left open after an error in Keras."""
    file = LateErrorFile(tmp_path / "file", "w")
    file.close()
    file.flush()
    assert file.write(b"more") == 4
