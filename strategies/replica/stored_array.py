"""Arrays in files. Each process reads only the ranges of elements that it needs."""

from __future__ import annotations

import math
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np

#: The bytes held at a time: enough to make latency negligible, few compared with a weight that is worth splitting.
SLICE_BYTES = 4 * 2**20

Box = tuple[slice, ...]


def ranges(count: int, item_bytes: int) -> Iterator[tuple[int, int]]:
    """Splits `count` items into ranges of at most `SLICE_BYTES`, equal in size where that leaves them large enough."""
    step = max(1, SLICE_BYTES // item_bytes)
    least = -(-count // step)
    step = next((count // number for number in range(max(1, least), 4 * least) if count % number == 0), step)
    for begin in range(0, count, step):
        yield begin, min(begin + step, count)


def boxes(shape: Sequence[int], begin: int, end: int) -> Iterator[Box]:
    """Splits the flattened elements `begin` to `end` of an array into boxes of the array, in order.

    Example: in an array of two rows of three, the elements 1 to 6 are the box [0:1, 1:3], then [1:2, 0:3].
    """
    if not shape:
        yield ()
        return
    row = math.prod(shape[1:])
    while begin < end:
        index, offset = divmod(begin, row)
        last = end // row
        if offset == 0 and index < last:
            yield (slice(index, last), *(slice(0, size) for size in shape[1:]))
            begin = last * row
        else:
            stop = min(end, (index + 1) * row)
            for rest in boxes(shape[1:], offset, offset + stop - begin):
                yield (slice(index, index + 1), *rest)
            begin = stop


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
        return type(self)(self._dataset, tuple(moved))

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
