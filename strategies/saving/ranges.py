"""Writes weights to a file range by range, so that no process holds a whole weight in addition to its own part.

Its contract is tested in ``tests/strategies/processes/spanning_files.py``.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np

from strategies.replica.fetching import local_slices
from strategies.replica.splitting import SplitWeight, sharded_weight
from strategies.replica.stored_array import boxes
from strategies.replica.whole_of_slices import WholeOfSlices


def write(dataset: Any, weight: Any) -> None:
    """Writes a weight into a dataset of its shape.

    Args:
        dataset: a dataset of h5py, or any object whose boxes of slices can be set to arrays.
        weight: a Keras variable or a split weight, all of which this process can read: see :func:`drive`.
    """
    weight = sharded_weight(weight) or weight
    if not isinstance(weight, SplitWeight):
        _write(dataset, weight, tuple(weight.shape), [0] * len(weight.shape))
        return
    if isinstance(weight, WholeOfSlices):
        _write_slices(dataset, weight, [0] * weight.ndim)
        return
    for shard, begin in zip(weight.shards, [0, *itertools.accumulate(weight.sizes)], strict=False):
        starts = [begin if dim == weight.dim else 0 for dim in range(weight.ndim)]
        shard = sharded_weight(shard) or shard
        if isinstance(shard, WholeOfSlices):
            _write_slices(dataset, shard, starts)
        else:
            _write(dataset, shard, tuple(shard.shape), starts)


def _write_slices(dataset: Any, weight: WholeOfSlices, starts: list[int]) -> None:
    """Writes a weight into the box of its shape that begins at `starts`."""
    for index, shard in enumerate(weight.shards):
        _write(dataset, shard, weight.shape, starts, weight.range_of(index)[0])


def _write(dataset: Any, variable: Any, shape: tuple[int, ...], starts: list[int], done: int = 0) -> None:
    """Writes a variable as the flattened elements, from `done` on, of the box of this shape that begins at `starts`."""
    with contextlib.closing(local_slices(variable)) as parts:
        for part in parts:
            array, begin = np.asarray(part), done
            done += array.size
            for box in boxes(shape, begin, done):
                sizes = [each.stop - each.start for each in box]
                count = int(np.prod(sizes))
                where = tuple(slice(s + each.start, s + each.stop) for s, each in zip(starts, box, strict=True))
                dataset[where] = array[:count].reshape(sizes)
                array = array[count:]
