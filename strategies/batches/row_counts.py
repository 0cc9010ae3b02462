"""The number of a replica's rows as a program reads it from a static shape: an int that is known to count rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark


class RowCount(int):
    """The size of a first dimension; if that is the dimension of rows, it converts to a tensor of `Kind.COUNT`.

    Results that are computed from it without TensorFlow are plain numbers.
    """

    #: For Keras, which would otherwise take the type of a plain number.
    dtype = int
    _counted: Any

    @classmethod
    def from_first_dim(cls, tensor: tf.Tensor) -> RowCount:
        """Returns the size of the first dimension of a tensor, which must be static."""
        made = cls(tensor.shape[0])
        made._counted = tensor
        return made

    @property
    def is_of_rows(self) -> bool:
        """True if the first dimension is the dimension of rows."""
        return bool(shares.current_dependence().kind(self._counted).has_rows)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        constant = tf.constant(int(self), dtype, name=name or "Const")
        share = shares.current()
        if share is None or share.num_replicas == 1:
            return constant
        # A replica without rows has a dummy row, so its count is 1: sums of counts over replicas leave it out.
        return mark(constant, Kind.COUNT) if self.is_of_rows else constant
