"""A base class of objects that stand for a variable in layers and optimizers: operators, conversion and reads.

The contract is tested in ``tests/strategies/replica/test_weight_math.py``.
"""

from __future__ import annotations

import abc
from typing import Any, Self

import tensorflow as tf


class WeightMath(abc.ABC):
    """Reads and computes as a variable does; each use reads the value once."""

    #: The shape of what :meth:`read` returns.
    shape: Any

    @abc.abstractmethod
    def read(self) -> tf.Tensor:
        """Returns the value."""

    @property
    def value(self) -> Self:
        """Returns self: optimizers unwrap ``keras.Variable.value``."""
        return self

    @property
    def ndim(self) -> int:
        """The number of dimensions."""
        return len(self.shape)

    def __tf_tensor__(self, dtype: Any = None, name: str | None = None) -> tf.Tensor:
        value = self.read()
        return value if dtype is None else tf.cast(value, dtype)

    def __add__(self, other: Any) -> tf.Tensor:
        return self.read() + other

    def __sub__(self, other: Any) -> tf.Tensor:
        return self.read() - other

    def __rsub__(self, other: Any) -> tf.Tensor:
        return other - self.read()

    def __mul__(self, other: Any) -> tf.Tensor:
        return self.read() * other

    def __truediv__(self, other: Any) -> tf.Tensor:
        return self.read() / other

    def __neg__(self) -> tf.Tensor:
        return -self.read()

    __radd__ = __add__
    __rmul__ = __mul__
