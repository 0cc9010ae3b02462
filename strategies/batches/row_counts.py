"""The number of a replica's rows, as a program reads it from a known shape: a plain number, marked as rows."""

from __future__ import annotations

from typing import Any

import tensorflow as tf

from strategies.batches import shares
from strategies.batches.row_kinds import Kind
from strategies.batches.row_marks import mark


class RowCount(int):
    """A first dimension that may be rows; as a tensor, it is a count of them (`Kind.COUNT`) if it is.

    What is computed of it without TensorFlow is a plain number.
    """

    #: For Keras, which takes the type of a plain number otherwise.
    dtype = int
    _counted: Any

    @classmethod
    def of_first_dim(cls, tensor: tf.Tensor) -> RowCount:
        """Returns the size of the first dimension of a tensor, which is known."""
        made = cls(tensor.shape[0])
        made._counted = tensor
        return made

    @property
    def is_of_rows(self) -> bool:
        """True if the first dimension is that of rows."""
        return bool(shares.dependence_here().kind(self._counted).has_rows)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        constant = tf.constant(int(self), dtype, name=name or "Const")
        share = shares.current()
        if share is None or share.num_replicas == 1:
            return constant
        # Own rows of a replica that has none are borrowed: whoever adds counts up leaves it out.
        return mark(constant, Kind.COUNT) if self.is_of_rows else constant
