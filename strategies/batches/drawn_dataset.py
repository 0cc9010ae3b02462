"""Draws the batches of a dataset of unknown length before their steps.

If a step draws its batch in its own graph, TensorFlow aborts that graph at the end of the data. Which of its ops have
run by then depends on the devices' threads: with several devices, the optimizer counted that step in some runs.
"""

from __future__ import annotations

from typing import Any

import tensorflow as tf


class DrawnDataset(tf.distribute.DistributedDataset):
    """A distributed dataset, with the same elements, that Keras' trainer iterates eagerly.

    Args:
        dataset: a ``tf.data.Dataset``.
    """

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.dataset = dataset

    @property
    def element_spec(self) -> Any:
        """The nest of specs of an element."""
        return self.dataset.element_spec

    def cardinality(self) -> Any:
        """Returns the number of batches, as in ``tf.data``."""
        return self.dataset.cardinality()

    def __iter__(self) -> DrawnIterator:
        return DrawnIterator(self.dataset)


class DrawnIterator:
    """Iterates over a :class:`DrawnDataset`."""

    def __init__(self, dataset: tf.data.Dataset) -> None:
        self.element_spec = dataset.element_spec
        self._iterator = iter(dataset)

    def __iter__(self) -> DrawnIterator:
        return self

    def __next__(self) -> Any:
        return next(self._iterator)
