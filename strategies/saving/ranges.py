"""Weights that are written to a file range by range: no process holds one of them beside its own part.

Its contract is tested in ``tests/strategies/processes/spanning_files.py``.
"""

from __future__ import annotations

import contextlib
import itertools
from typing import Any

import numpy as np

from strategies.replica.fetching import local_slices
from strategies.replica.flat_ranges import boxes
from strategies.replica.splitting import SplitWeight


def write(dataset: Any, weight: Any) -> None:
    """Writes a weight into a dataset of its shape.

    Args:
        dataset: of h5py, or what else takes arrays into boxes of slices.
        weight: a Keras variable or a split weight, of which this process can read all: see :func:`drive`.
    """
    if not isinstance(weight, SplitWeight):
        _write(dataset, weight, [0] * len(weight.shape))
        return
    for shard, begin in zip(weight.shards, [0, *itertools.accumulate(weight.sizes)], strict=False):
        _write(dataset, shard, [begin if dim == weight.dim else 0 for dim in range(weight.ndim)])


def _write(dataset: Any, variable: Any, starts: list[int]) -> None:
    shape, done = tuple(variable.shape), 0
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
