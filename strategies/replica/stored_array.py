"""An array in a file; each process reads only the parts that it needs, when it needs them."""

from __future__ import annotations

import math
from typing import Any

import numpy as np

from strategies.replica.flat_ranges import Box, boxes


class StoredArray(np.lib.mixins.NDArrayOperatorsMixin):
    """Replaces the array that Keras reads from a file; reads nothing until it is used.

    A variable that is set to it reads it range by range; a variable of other processes does not read it at all. All
    other code sees an array, which is read each time it is used.

    Args:
        dataset: a dataset of h5py, or any object that has a shape and a dtype and is read by slices.
        where: the array's box in the dataset; all of the dataset if None.
    """

    def __init__(self, dataset: Any, where: Box | None = None) -> None:
        self._dataset = dataset
        self._where = tuple(slice(0, size) for size in dataset.shape) if where is None else where
        self.shape = tuple(each.stop - each.start for each in self._where)
        self.dtype: np.dtype[Any] = np.dtype(dataset.dtype)
        self.ndim = len(self.shape)
        self.size = math.prod(self.shape)

    def part(self, where: Box) -> StoredArray:
        """Returns a box of the array, which is not read yet either."""
        starts = [own.start for own in self._where]
        moved = (slice(s + own.start, s + own.stop) for s, own in zip(starts, where, strict=True))
        return StoredArray(self._dataset, tuple(moved))

    def flat(self, begin: int, end: int) -> np.ndarray:
        """Reads the flattened elements `begin` to `end` of the array."""
        read = [np.asarray(self.part(box)).reshape(-1) for box in boxes(self.shape, begin, end)]
        return read[0] if len(read) == 1 else np.concatenate(read)

    def __getitem__(self, key: Any) -> Any:
        return np.asarray(self)[key]

    def __len__(self) -> int:
        return self.shape[0]

    def __array__(self, dtype: Any = None, copy: bool | None = None) -> np.ndarray:
        value = np.asarray(self._dataset[self._where])
        return value if dtype is None else value.astype(dtype, copy=False)

    def __array_ufunc__(self, ufunc: Any, method: str, *inputs: Any, **kwargs: Any) -> Any:
        read = (np.asarray(each) if isinstance(each, StoredArray) else each for each in inputs)
        return getattr(ufunc, method)(*read, **kwargs)

    def __getattr__(self, name: str) -> Any:
        if name.startswith("_") or not hasattr(np.ndarray, name):
            # TensorFlow looks up names of its own, for which nothing must be read.
            raise AttributeError(name)
        return getattr(np.asarray(self), name)
