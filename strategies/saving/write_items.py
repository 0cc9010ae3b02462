"""Divides the tensors of a model among the processes that write them.

An item is a range of the elements of a variable that holds a box of a tensor, or a range of one. All processes make the
same list, without a message: each knows who owns every variable. A variable of several owners is written by the one
that has the fewest bytes so far, and a large one by all of them, a range each.

Tested with several processes in ``tests/strategies/processes/sharded_checkpoints.py``. Source: torch's distributed
checkpoints have write items as well, https://docs.pytorch.org/docs/stable/distributed.checkpoint.html.
"""

from __future__ import annotations

import dataclasses
import itertools
import math
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

import numpy as np
import tensorflow as tf

from strategies.replica.deferred import is_remote
from strategies.replica.fetching import local_value
from strategies.replica.owners import owners_of
from strategies.replica.splitting import SplitWeight, sharded_weight
from strategies.replica.stored_array import StoredArray
from strategies.replica.whole_of_slices import WholeOfSlices
from strategies.sharding.variables import bounds

#: Variables of more bytes are written by all their owners together.
SHARED_BYTES = 4 * 2**20


@dataclasses.dataclass(frozen=True)
class WriteItem:
    """A range of elements of a variable, and its place in a tensor.

    Attributes:
        name: the name of the tensor.
        value: the variable, or an array that every process has.
        starts: where the box begins in the tensor, along each dim.
        shape: the shape of the box.
        begin: the first of the box's flattened elements.
        end: the element after the last one.
        offset: the position of the first element in the variable.
        rank: the process that writes the item.
    """

    name: str
    value: Any
    starts: tuple[int, ...]
    shape: tuple[int, ...]
    begin: int
    end: int
    offset: int = 0
    rank: int = 0

    def numpy(self) -> np.ndarray:
        """Returns the elements as they are now, as the box if they are all of it, else flat. The writer calls it.

        On a CPU nothing is copied: a tensor that was read from a variable keeps its memory, and TensorFlow's updates of
        the variable write to another one as long as it is held.
        """
        count = self.end - self.begin
        if isinstance(self.value, StoredArray):
            flat = self.value.flat(self.offset, self.offset + count)
        elif hasattr(self.value, "assign"):
            flat = np.asarray(local_value(self.value)).reshape(-1)[self.offset : self.offset + count]
        else:
            # Any other array may be changed by its owner.
            flat = np.array(self.value).reshape(-1)[self.offset : self.offset + count]
        return np.asarray(flat.reshape(self.shape) if count == math.prod(self.shape) else flat, order="C")


def shape_and_dtype(value: Any) -> tuple[tuple[int, ...], str]:
    """Returns the shape of a tensor to be saved, and Keras' name of its dtype."""
    if hasattr(value, "shape") and hasattr(value, "dtype"):
        return tuple(map(int, value.shape)), str(getattr(value.dtype, "name", value.dtype))
    array = np.asarray(value)
    return array.shape, array.dtype.name


def write_items(values: Mapping[str, Any], num_processes: int) -> list[WriteItem]:
    """Returns the items of all tensors, with the processes that write them. The same on all processes.

    Args:
        values: Keras variables, split weights, or arrays that all processes have, by name.
        num_processes: the number of the job's processes.
    """
    found: list[WriteItem] = []
    load = [0] * num_processes
    for name, value in values.items():
        for item in _of(name, value):
            owners = list(owners_of(item.value) if hasattr(item.value, "assign") else ()) or range(num_processes)
            count, item_bytes = item.end - item.begin, _item_bytes(item.value)
            if count * item_bytes > SHARED_BYTES and len(owners) > 1:
                split = zip(owners, bounds(count, len(owners)), strict=True)
            else:
                split = zip([min(owners, key=lambda rank: load[rank])], [(0, count)], strict=True)
            for rank, (first, last) in split:
                load[rank] += (last - first) * item_bytes
                found.append(
                    dataclasses.replace(item, begin=item.begin + first, end=item.begin + last, offset=first, rank=rank)
                )
    return found


def _item_bytes(value: Any) -> int:
    return int(tf.as_dtype(shape_and_dtype(value)[1]).size)


def _of(name: str, value: Any) -> Iterator[WriteItem]:
    """Yields an item for each variable of a tensor, its shards or itself."""
    value = (sharded_weight(value) if hasattr(value, "__dict__") else None) or value
    shape, _ = shape_and_dtype(value)
    if not isinstance(value, SplitWeight):
        yield WriteItem(name, value, (0,) * len(shape), shape, 0, math.prod(shape))
        return
    if isinstance(value, WholeOfSlices):
        yield from _slices(name, value, (0,) * len(shape))
        return
    for shard, begin in zip(value.shards, [0, *itertools.accumulate(value.sizes)], strict=False):
        starts = tuple(begin if dim == value.dim else 0 for dim in range(value.ndim))
        shard = sharded_weight(shard) or shard
        if isinstance(shard, WholeOfSlices):
            yield from _slices(name, shard, starts)
        else:
            shape = tuple(map(int, shard.shape))
            yield WriteItem(name, shard, starts, shape, 0, math.prod(shape))


def _slices(name: str, weight: WholeOfSlices, starts: Sequence[int]) -> Iterator[WriteItem]:
    for index, shard in enumerate(weight.shards):
        begin, end = weight.range_of(index)
        yield WriteItem(name, shard, tuple(starts), tuple(weight.shape), begin, end)


def own_arrays(items: Sequence[WriteItem], rank: int) -> dict[int, np.ndarray]:
    """Returns the elements that one process writes, as they are now, by the positions of their items.

    Raises:
        ValueError: the process does not own a variable that it is to write.
    """
    found = {}
    for position, item in enumerate(items):
        if item.rank != rank:
            continue
        if hasattr(item.value, "assign") and is_remote(item.value):
            raise ValueError(f"Rank {rank} does not own {item.name!r}, which it is to write.")
        found[position] = item.numpy()
    return found
