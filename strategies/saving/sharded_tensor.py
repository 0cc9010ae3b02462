"""Tensors of a sharded checkpoint, read box by box from the files of all ranks."""

from __future__ import annotations

import functools
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np

from strategies.replica.stored_array import Box
from strategies.saving.safetensors_file import SafetensorsReader
from strategies.saving.sharded_index import Index, Tensor


class ShardedTensor:
    """A tensor as a dataset: it has a shape and a dtype, and a box of it is read from the parts that overlap it.

    Args:
        tensor: the tensor in the index.
        reader: returns the reader of a file, given its name.
    """

    def __init__(self, tensor: Tensor, reader: Callable[[str], SafetensorsReader]) -> None:
        self.shape = tensor.shape
        self.dtype: np.dtype[Any] = np.dtype(tensor.dtype)
        self._tensor = tensor
        self._reader = reader

    def __getitem__(self, where: Box) -> np.ndarray:
        found = np.empty([each.stop - each.start for each in where], self.dtype)
        for part in self._tensor.parts:
            for box, position in part.boxes():
                overlap = [(max(a.start, b.start), min(a.stop, b.stop)) for a, b in zip(where, box, strict=True)]
                if any(begin >= end for begin, end in overlap):
                    continue
                target = tuple(slice(b - a.start, e - a.start) for (b, e), a in zip(overlap, where, strict=True))
                source = tuple(slice(b - a.start, e - a.start) for (b, e), a in zip(overlap, box, strict=True))
                shape = tuple(each.stop - each.start for each in box)
                found[target] = self._reader(part.file).tensor(part.name).box(position, shape, source)
        return found


def sharded_tensors(folder: Path, index: Index) -> dict[str, ShardedTensor]:
    """Returns the tensors of a checkpoint's folder by name; reads nothing yet, not even the headers of the files."""

    @functools.cache
    def reader(name: str) -> SafetensorsReader:
        return SafetensorsReader(folder / name)

    return {name: ShardedTensor(tensor, reader) for name, tensor in index.items()}


def damaged_tensors(folder: Path, index: Index, files: Callable[[str], bool] = lambda name: True) -> list[str]:
    """Returns a line for each tensor of some files whose bytes are not those that were written, by their checksums.

    Args:
        folder: the folder of the files.
        index: the index of all tensors.
        files: returns True for the name of a file that is to be looked at.
    """
    found: list[str] = []
    readers: dict[str, SafetensorsReader | Exception] = {}
    for name, tensor in index.items():
        for part in tensor.parts:
            if not files(part.file):
                continue
            if part.file not in readers:
                try:
                    readers[part.file] = SafetensorsReader(folder / part.file)
                except (OSError, ValueError) as error:
                    readers[part.file] = error
            reader = readers[part.file]
            try:
                if isinstance(reader, Exception):
                    found.append(f"{name}: {reader}")
                elif not reader.has(part.name, np.dtype(tensor.dtype), part.end - part.begin):
                    found.append(f"{name}: {folder / part.file} has it in another dtype or shape")
                elif reader.checksum(part.name) != part.crc32:
                    found.append(f"{name}: its bytes in {folder / part.file} are not those that were written")
            except (OSError, ValueError) as error:
                found.append(f"{name}: {error}")
    return found
