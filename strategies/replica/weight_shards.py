"""Slices of a weight that no device holds whole between updates: shards, and the whole on one owner for an update.

The contract is tested in ``tests/strategies/parity/test_sharded.py``.
"""

from __future__ import annotations

import math
from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.replica.weight_slices import WeightSlice


class WeightShard(WeightSlice):
    """A shard that is stored as its own variable: the owner's device holds nothing else of the weight."""

    is_shard = True

    def read(self) -> tf.Tensor:
        """Returns its elements; zeros if another process owns them."""
        if not self.is_owned:
            return tf.zeros(self.shape, self.dtype)
        component = self.component
        with tf.device(component.device):
            return component.read_value()

    def assign(self, value: Any) -> None:
        """Sets its elements on the owner's device; does nothing if another process owns it."""
        if self.is_owned:
            with tf.device(self.device):
                self.component.assign(tf.cast(value, self.dtype), read_value=False)

    def assign_sub(self, value: Any) -> None:
        """Subtracts from its elements."""
        if self.is_owned:
            with tf.device(self.device):
                self.component.assign_sub(tf.cast(value, self.dtype), read_value=False)

    def _scatter(self, slices: tf.IndexedSlices, how: str) -> None:
        with tf.device(self.device):
            getattr(self.component, f"scatter_{how}")(slices)


class WholeOnOwner(WeightSlice):
    """All elements of a sharded weight on the device of one owner, as a variable that an update works on.

    Args:
        variable: a Keras variable.
        rank: the process that owns it.
        replicas: the local replicas on whose devices it is.
        components: the TensorFlow variable on each of these devices.
    """

    is_whole_on_owner = True

    def __init__(self, variable: Any, rank: int, replicas: Sequence[int], components: Sequence[Any]) -> None:
        super().__init__(variable, 0, math.prod(tuple(variable.shape)), rank, replicas)
        self.components = tuple(components)

    @property
    def component(self) -> Any:
        """The TensorFlow variable, on the owner's device, that holds the elements while they are updated."""
        return self.components[self.replicas.index(self.replica)]

    def read(self) -> tf.Tensor:
        """Returns its elements; zeros if another process owns them."""
        return super().read() if self.is_owned else tf.zeros(self.shape, self.dtype)
