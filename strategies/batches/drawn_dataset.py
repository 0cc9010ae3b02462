"""Draws the batches of a dataset of unknown length before their steps.

If a step draws its batch in its own graph, TensorFlow aborts that graph at the end of the data. Which of its ops have
run by then depends on the devices' threads: with several devices, the optimizer counted that step in some runs.
"""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any

import tensorflow as tf


class DrawnDataset(tf.distribute.DistributedDataset):
    """A distributed dataset, with the same elements, that Keras' trainer iterates eagerly.

    Args:
        dataset: a ``tf.data.Dataset``.
        add_seconds: is called with the seconds that each element took.
    """

    def __init__(self, dataset: tf.data.Dataset, add_seconds: Callable[[float], None]) -> None:
        self.dataset = dataset
        self._add_seconds = add_seconds

    @property
    def element_spec(self) -> Any:
        """The nest of specs of an element."""
        return self.dataset.element_spec

    def cardinality(self) -> Any:
        """Returns the number of batches, as in ``tf.data``."""
        return self.dataset.cardinality()

    def __iter__(self) -> DrawnIterator:
        return DrawnIterator(self.dataset, self._add_seconds)


class DrawnIterator:
    """Iterates over a :class:`DrawnDataset`."""

    def __init__(self, dataset: tf.data.Dataset, add_seconds: Callable[[float], None]) -> None:
        self.element_spec = dataset.element_spec
        self._iterator = iter(dataset)
        self._add_seconds = add_seconds

    def __iter__(self) -> DrawnIterator:
        return self

    def __next__(self) -> Any:
        begin = time.perf_counter()
        try:
            return next(self._iterator)
        finally:
            self._add_seconds(time.perf_counter() - begin)
