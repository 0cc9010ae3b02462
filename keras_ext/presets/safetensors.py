"""Files in the format of safetensors, whose tensors are read box by box.

A file begins with the size of its header, eight bytes in little-endian order, and the header: JSON with the dtype, the
shape and the byte range of each tensor. The tensors' bytes follow, in row-major order.

Source: the description of the format in the documentation of the ``safetensors`` package. Its own reader maps the file
into the memory of the process, where the pages that were read would count as the process' own.
"""

from __future__ import annotations

import json
import math
from pathlib import Path
from typing import Any

import numpy as np

from keras_ext.presets.lazy_arrays import LazyArray

_DTYPES = {"BOOL": "bool", "BF16": "bfloat16", "F8_E4M3": "float8_e4m3fn", "F8_E5M2": "float8_e5m2"}
_DTYPES |= {f"F{bits}": f"float{bits}" for bits in (16, 32, 64)}
_DTYPES |= {
    f"{kind}{bits}": f"{name}{bits}" for kind, name in (("I", "int"), ("U", "uint")) for bits in (8, 16, 32, 64)
}


class SafetensorsFile:
    """The tensors of one file, as ``safetensors.safe_open(path, framework="np")`` gives them, but lazy.

    Args:
        path: the file.

    Raises:
        ValueError: the file is not a whole file of this format.
    """

    def __init__(self, path: str | Path) -> None:
        self.path = Path(path)
        size = self.path.stat().st_size
        with self.path.open("rb") as file:
            header_size = int.from_bytes(file.read(8), "little")
            try:
                header = json.loads(file.read(min(header_size, size)))
                header.pop("__metadata__", None)
                self._begin = 8 + header_size
                #: The names of tensors that were used.
                self.used: set[str] = set()
                self._tensors = {name: _Tensor(self.path, self._begin, entry) for name, entry in header.items()}
            except (ValueError, KeyError, TypeError, AttributeError) as error:
                raise ValueError(
                    f"The header of {self.path} is damaged, or the file is not in the format of safetensors: {error}."
                ) from error
        end = max((tensor.end for tensor in self._tensors.values()), default=0)
        if end != size:
            raise ValueError(f"{self.path} is to have {end} bytes by its header. Received: a file of {size} bytes.")

    def __enter__(self) -> SafetensorsFile:
        return self

    def __exit__(self, *error: object) -> None:
        """Does nothing: the file is open only while a tensor is read."""

    def keys(self) -> list[str]:
        """Returns the names of all tensors."""
        return list(self._tensors)

    def get_tensor(self, name: str) -> LazyArray:
        """Returns a tensor, which is read when it is used.

        Raises:
            KeyError: there is none of this name.
        """
        tensor = self._tensors[name]
        self.used.add(name)
        return LazyArray(tensor)

    def unused(self) -> dict[str, tuple[int, ...]]:
        """Returns the shapes of the tensors that were not used."""
        return {name: tensor.shape for name, tensor in self._tensors.items() if name not in self.used}


class _Tensor:
    """One tensor, as a dataset.

    Args:
        path: the file.
        begin: where the bytes of all tensors begin in it.
        entry: of the tensor in the header.
    """

    def __init__(self, path: Path, begin: int, entry: Any) -> None:
        self.shape: tuple[int, ...] = tuple(int(size) for size in entry["shape"])
        self.dtype = np.dtype(_DTYPES[entry["dtype"]])
        first, last = entry["data_offsets"]
        if last - first != math.prod(self.shape) * self.dtype.itemsize:
            raise ValueError(f"{last - first} bytes are not a tensor of {self.dtype} of shape {self.shape}")
        #: The offset of the tensor's end in the file, in bytes.
        self.end = begin + last
        self._path = path
        self._offset = begin + first

    def __getitem__(self, where: tuple[slice, ...]) -> np.ndarray:
        if math.prod(self.shape) == 0:
            return np.zeros(self.shape, self.dtype)[where]
        # Mapped only while the box is copied: mapped pages count as memory of the process.
        mapped = np.memmap(self._path, self.dtype, "r", self._offset, self.shape or (1,))
        return np.array(mapped.reshape(self.shape)[where])
