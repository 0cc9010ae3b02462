"""The batches on which a model is compared, given to ``fit`` one at a time, as their source would give them.

``train_on_batch`` would give steps that a program overrides other data: always a tuple of three.
"""

from __future__ import annotations

import dataclasses
import itertools
from collections.abc import Iterable, Iterator, Mapping
from typing import Any

import keras
import tensorflow as tf

_BATCH_SIZE = 32


@dataclasses.dataclass(frozen=True)
class Batch:
    """A global batch.

    Attributes:
        x: the inputs of the model.
        data: the arguments with which ``fit`` trains on it.
    """

    x: Any
    data: Mapping[str, Any]

    @classmethod
    def from_arrays(cls, arrays: tuple[Any, ...]) -> Batch:
        """Makes a batch of arrays (x, y, sample_weight), the last of which may be absent or None."""
        x, y, sample_weight = keras.utils.unpack_x_y_sample_weight(arrays)
        settings = {"batch_size": num_rows(x), "shuffle": False}
        return cls(x, {"x": x, "y": y, "sample_weight": sample_weight, **settings})

    @classmethod
    def from_element(cls, element: Any) -> Batch:
        """Makes a batch of what a dataset or a generator yields."""
        # A `train_step` may take more than (x, y, sample_weight).
        return cls(
            element[0] if isinstance(element, (tuple, list)) else element,
            {"x": tf.data.Dataset.from_tensors(element), "shuffle": False},
        )


def batches_of(data: Any, steps: int) -> list[Batch]:
    """Returns the first batches of the data.

    Args:
        data: see ``KerasStrategy.check``.
        steps: the number of batches.

    Raises:
        ValueError: the data are something else, or have fewer batches.
    """
    if not isinstance(steps, int) or steps < 1:
        raise ValueError(f"steps must be a whole number from 1. Received: steps={steps!r}.")
    found: Iterable[Batch]
    if isinstance(data, tuple):
        count = num_rows(data)
        size = max(1, min(_BATCH_SIZE, count // steps))
        found = (Batch.from_arrays(rows_of(data, begin, begin + size)) for begin in range(0, count, size))
    elif isinstance(data, keras.utils.PyDataset):
        found = (Batch.from_element(data[i]) for i in range(len(data)))
    elif isinstance(data, (tf.data.Dataset, list, Iterator)):
        found = map(Batch.from_element, data)
    else:
        raise ValueError(
            "data must be a tuple of arrays (x, y) or (x, y, sample_weight), a tf.data.Dataset, a PyDataset, a "
            "generator or a list of global batches. For findings without training, give a batch of inputs as "
            f"strategy.check(model, inputs=x). Received: data of type {type(data).__name__}."
        )
    batches = list(itertools.islice(found, steps))
    if len(batches) < steps:
        raise ValueError(f"The data have fewer batches than steps. Received: {len(batches)} batches, steps={steps}.")
    return batches


def rows_of(data: Any, begin: int, end: int) -> Any:
    """Returns some rows of all arrays in a structure."""
    return keras.tree.map_structure(lambda array: _rows(array, begin, end), data)


def _rows(array: Any, begin: int, end: int) -> Any:
    if array is None:
        return None
    if isinstance(array, tf.SparseTensor):
        sizes = [end - begin, *array.shape[1:]]
        return tf.sparse.slice(array, [begin, *[0] * len(array.shape[1:])], sizes)
    return array[begin:end]


def num_rows(data: Any) -> int:
    """Returns the number of rows of a structure of arrays."""
    first = keras.tree.flatten(data)[0]
    return int(first.shape[0]) if hasattr(first, "shape") else len(first)
