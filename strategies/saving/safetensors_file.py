"""Writes and reads files in the format of safetensors: a header of JSON, then the bytes of the tensors.

The package ``safetensors`` takes the bytes of all tensors as one more copy of them. Here they are written from the
arrays that exist, and a file is read part by part.

Source: the format's description, https://github.com/huggingface/safetensors#format. Tested against the package in
``tests/strategies/saving/test_safetensors_file.py``.
"""

from __future__ import annotations

import json
import math
import os
import zlib
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import numpy as np

from strategies.replica.stored_array import Box

#: The format's names of dtypes, by NumPy's.
NAMES = {"bool": "BOOL", "bfloat16": "BF16", "float8_e4m3fn": "F8_E4M3", "float8_e5m2": "F8_E5M2", "complex64": "C64"}
NAMES |= {f"float{bits}": f"F{bits}" for bits in (16, 32, 64)}
NAMES |= {f"{name}{bits}": f"{kind}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)}

_DTYPES = {theirs: ours for ours, theirs in NAMES.items()}

# Enough to make calls negligible; the checksum of a piece is computed while it is in the processor's cache.
_CHUNK_BYTES = 2**20
# The disk begins to write each time this number of bytes is complete, while the next ones are checked and copied.
_FLUSH_BYTES = 2**23


def write(path: Path, arrays: Mapping[str, np.ndarray], metadata: Mapping[str, str]) -> dict[str, int]:
    """Writes arrays to a new file, whose bytes are on the disk when this returns.

    Args:
        path: the file.
        arrays: C-contiguous arrays, by name.
        metadata: texts for the header.

    Returns:
        The CRC-32 checksum of each array's bytes.

    Raises:
        OSError: the file cannot be written, as on a full disk.
        ValueError: the format has no such dtype.
    """
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    offset = 0
    for name, array in arrays.items():
        dtype = NAMES.get(array.dtype.name)
        if dtype is None:
            raise ValueError(
                f"A sharded checkpoint has tensors of the dtypes of the format safetensors, {', '.join(NAMES)}. "
                f"Received: {name!r} of dtype {array.dtype.name}. Save whole files instead: sharded=False."
            )
        header[name] = {"dtype": dtype, "shape": list(array.shape), "data_offsets": [offset, offset + array.nbytes]}
        offset += array.nbytes
    text = json.dumps(header, separators=(",", ":")).encode()
    # The data begin at a multiple of 8 bytes, as the format demands.
    text += b" " * (-len(text) % 8)
    checksums = {}
    with path.open("wb", buffering=0) as file:
        _write_all(file, memoryview(len(text).to_bytes(8, "little") + text))
        flushed = 0
        for name, array in arrays.items():
            checksums[name] = 0
            for piece in _pieces(array):
                checksums[name] = zlib.crc32(piece, checksums[name])
                _write_all(file, piece)
                if file.tell() - flushed >= _FLUSH_BYTES:
                    flushed = _flush(file, flushed)
        os.fsync(file.fileno())
    return checksums


def _flush(file: Any, begin: int) -> int:
    """Lets the disk write what was written from `begin` on, without waiting; returns the end."""
    end = int(file.tell())
    if hasattr(os, "posix_fadvise"):
        # Of pages that are not on the disk yet, Linux begins to write them; it has no other call for this in Python.
        os.posix_fadvise(file.fileno(), begin, end - begin, os.POSIX_FADV_DONTNEED)
    return end


def _write_all(file: Any, data: memoryview) -> None:
    """Writes all bytes: one call of an unbuffered file may write only the first of them."""
    while data:
        data = data[file.write(data) :]


def _pieces(array: np.ndarray) -> Iterator[memoryview]:
    # As bytes: memoryviews do not know dtypes such as bfloat16.
    data = array.reshape(-1).view(np.uint8).data
    for begin in range(0, len(data), _CHUNK_BYTES):
        yield data[begin : begin + _CHUNK_BYTES]


class FileTensor:
    """A tensor of a file as a dataset: it has a shape and a dtype, and is read by boxes, or by ranges of elements.

    Args:
        path: the file.
        begin: the offset of the bytes of all tensors in it.
        entry: the tensor's entry in the header.

    Raises:
        ValueError, KeyError, TypeError: the entry is damaged.
    """

    def __init__(self, path: Path, begin: int, entry: Any) -> None:
        self.shape: tuple[int, ...] = tuple(int(size) for size in entry["shape"])
        self.dtype: np.dtype[Any] = np.dtype(_DTYPES[entry["dtype"]])
        self.size = math.prod(self.shape)
        first, last = entry["data_offsets"]
        if last - first != self.size * self.dtype.itemsize:
            raise ValueError(f"{last - first} bytes are not a tensor of {self.dtype} of shape {self.shape}")
        #: The offset of the tensor's end in the file, in bytes.
        self.end = begin + last
        self._path = path
        self._offset = begin + first

    def __getitem__(self, where: Box) -> np.ndarray:
        return self.box(0, self.shape, where)

    def box(self, begin: int, shape: tuple[int, ...], where: Box) -> np.ndarray:
        """Returns a box of the array of this shape that the flattened elements from `begin` on make up."""
        if math.prod(shape) == 0:
            return np.zeros(shape, self.dtype)[where]
        # Mapped only while the box is copied: mapped pages count as memory of the process.
        mapped = np.memmap(self._path, self.dtype, "r", self._offset + begin * self.dtype.itemsize, shape or (1,))
        return np.array(mapped.reshape(shape)[where])

    def flat(self, begin: int, end: int) -> np.ndarray:
        """Returns the flattened elements `begin` to `end`."""
        with self._path.open("rb", buffering=0) as file:
            file.seek(self._offset + begin * self.dtype.itemsize)
            data = bytearray((end - begin) * self.dtype.itemsize)
            _read_all(file, memoryview(data))
        return np.frombuffer(data, np.uint8).view(self.dtype)


class SafetensorsReader:
    """The tensors of a file.

    The package's own reader maps the file into the memory of the process, where the pages that were read would count
    as the process' own.

    Args:
        path: the file.

    Raises:
        ValueError: the file is not a whole file of this format.
        OSError: it cannot be read.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        size = path.stat().st_size
        try:
            with path.open("rb") as file:
                begin = 8 + int.from_bytes(file.read(8), "little")
                header = json.loads(file.read(min(begin - 8, size)))
            self.metadata: dict[str, str] = header.pop("__metadata__", {})
            #: The tensors by name.
            self.tensors = {name: FileTensor(path, begin, entry) for name, entry in header.items()}
        except (ValueError, KeyError, TypeError, AttributeError) as error:
            raise ValueError(
                f"The header of {path} is damaged, or the file is not in the format of safetensors: {error}."
            ) from error
        end = max((tensor.end for tensor in self.tensors.values()), default=begin)
        if end != size:
            raise ValueError(f"{path} is to have {end} bytes by its header. Received: a file of {size} bytes.")

    def read(self, name: str, begin: int, end: int) -> np.ndarray:
        """Returns the flattened elements `begin` to `end` of a tensor."""
        tensor = self.tensor(name)
        if not 0 <= begin <= end <= tensor.size:
            raise ValueError(f"{self.path}: {name!r} has shape {tensor.shape}. Received: elements {begin} to {end}.")
        return tensor.flat(begin, end)

    def has(self, name: str, dtype: np.dtype[Any], count: int) -> bool:
        """Returns True if the file has a tensor of this name, with this dtype and number of elements."""
        tensor = self.tensor(name)
        return tensor.dtype == dtype and tensor.size == count

    def checksum(self, name: str) -> int:
        """Returns the CRC-32 checksum of a tensor's bytes."""
        tensor = self.tensor(name)
        step, found = max(1, _CHUNK_BYTES // tensor.dtype.itemsize), 0
        for begin in range(0, tensor.size, step):
            found = zlib.crc32(tensor.flat(begin, min(begin + step, tensor.size)).view(np.uint8).data, found)
        return found

    def tensor(self, name: str) -> FileTensor:
        """Returns a tensor.

        Raises:
            ValueError: there is none of this name.
        """
        if name not in self.tensors:
            raise ValueError(f"{self.path} has no tensor {name!r}: the file is damaged, or another one.")
        return self.tensors[name]


def _read_all(file: Any, into: memoryview) -> None:
    while into:
        count = file.readinto(into)
        if not count:
            raise OSError(f"{file.name} ends before its tensors do.")
        into = into[count:]
