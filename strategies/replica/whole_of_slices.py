"""The whole of a weight whose shards are ranges of its elements: what arrays and files have.

The contract is tested in ``tests/strategies/parity/test_sharded.py``.
"""

from __future__ import annotations

from collections.abc import Callable, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.replica.fetching import fetched
from strategies.replica.splitting import SplitWeight
from strategies.replica.stored_array import StoredArray


class WholeOfSlices(SplitWeight):
    """A weight, or a slot of one, whose shards are ranges of its flattened elements.

    Args:
        name: the weight's name.
        shape: the shape of the whole weight.
        sizes: the numbers of elements of the shards.
        dtype: the shards' dtype, by Keras' name; None if they are Keras variables or slices, which have names of dtypes
            and paths. TensorFlow's variables have not.
    """

    def __init__(self, name: str, shape: Sequence[int], sizes: Sequence[int], dtype: str | None = None) -> None:
        super().__init__(name, shape or (1,), 0, sizes)
        self._dtype = dtype
        self.shape = tuple(shape)
        #: Returns the TensorFlow variable that is sharded over devices; None for a weight that each device holds whole.
        self.distributed: Callable[[], Any] | None = None

    @property
    def dtype(self) -> str:
        """The shards' dtype, by Keras' name."""
        return super().dtype if self._dtype is None else self._dtype

    @property
    def path(self) -> str:
        """The path of the shards; the weight's name if they have none."""
        return super().path if self._dtype is None else self.name

    def like(self) -> WholeOfSlices:
        """Returns a weight of the same form that has no shards yet."""
        made = WholeOfSlices(self.name, self.shape, self.sizes)
        made.is_inner = self.is_inner
        return made

    def range_of(self, index: int) -> tuple[int, int]:
        """Returns the first element of shard `index`, and the one after its last."""
        begin = sum(self.sizes[:index])
        return begin, begin + self.sizes[index]

    def part_of(self, value: Any, index: int) -> Any:
        """Returns shard `index` of ``value``, which has the weight's shape, in the shard's shape."""
        begin, end = self.range_of(index)
        part = value.flat(begin, end) if isinstance(value, StoredArray) else tf.reshape(value, [-1])[begin:end]
        return tf.reshape(part, self.shards[index].shape)

    def numpy(self) -> np.ndarray:
        """Returns the whole weight; if several processes own its shards, all of them call it."""
        return np.concatenate([fetched(shard).reshape(-1) for shard in self.shards]).reshape(self.shape)

    def read(self) -> tf.Tensor:
        """Returns the whole weight; if several processes own its shards, all of them call it."""
        return tf.convert_to_tensor(self.numpy())
