"""Some rows of a variable, as a variable that an optimizer updates by a sparse gradient."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.replica.weight_math import WeightMath


class RowView(WeightMath):
    """Rows of a variable: reads gather them, writes scatter them, and the other rows are neither read nor written.

    Args:
        variable: a TensorFlow variable that has rows, on one device.
        rows: int, ``[n]``, without duplicates.
        unique_id: the id by which Keras' optimizers know the variable.
    """

    def __init__(self, variable: Any, rows: tf.Tensor, unique_id: str = "") -> None:
        self._variable = variable
        self._rows = rows
        self._unique_id = unique_id
        self.dtype = tf.as_dtype(variable.dtype).name
        #: The number of rows depends on the batch.
        self.shape = tf.TensorShape([None, *variable.shape[1:]])

    def read(self) -> tf.Tensor:
        """Returns the rows."""
        with tf.device(self._variable.device):
            return self._variable.sparse_read(self._rows)

    def assign(self, value: Any) -> None:
        """Sets the rows."""
        self._scatter("update", value)

    def assign_add(self, value: Any) -> None:
        """Adds to the rows."""
        self._scatter("add", value)

    def assign_sub(self, value: Any) -> None:
        """Subtracts from the rows."""
        self._scatter("sub", value)

    def scatter_update(self, slices: tf.IndexedSlices) -> None:
        """Sets the rows that the slices' indices select."""
        self._scatter("update", slices.values, slices.indices)

    def scatter_add(self, slices: tf.IndexedSlices) -> None:
        """Adds slices; several may belong to one row."""
        self._scatter("add", slices.values, slices.indices)

    def scatter_sub(self, slices: tf.IndexedSlices) -> None:
        """Subtracts slices; several may belong to one row."""
        self._scatter("sub", slices.values, slices.indices)

    def _scatter(self, how: str, values: Any, positions: tf.Tensor | None = None) -> None:
        rows = self._rows if positions is None else tf.gather(self._rows, positions)
        with tf.device(self._variable.device):
            slices = tf.IndexedSlices(tf.cast(values, self.dtype), rows)
            getattr(self._variable, f"scatter_{how}")(slices)
