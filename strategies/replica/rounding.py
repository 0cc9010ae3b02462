"""Gradients that are rounded to a smaller dtype where they are computed: they are summed first, and rounded then.

A float8 layer computes its bias in bfloat16, so that the gradient of the bias, a sum over rows, is rounded to bfloat16
at the end of the backward pass. One device rounds the sum over the batch. Here that is the sum over replicas and
micro-batches, of which each would round its own term. So a term is taken as it was before it was rounded, and remembers
to what its sum is to be rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.batches.row_dependence import RowDependence

_ROUNDED = "_keras_strategies_rounded_to"


def unrounded(gradient: Any, variable: Any, dependence: RowDependence) -> Any:
    """Returns a gradient as it was before it was rounded; as it is if it was not, or if that is not known.

    The variable remembers it, too: functions return other tensors than those that are made in them.

    Args:
        gradient: a tensor, slices or None.
        variable: of which it is the gradient.
        dependence: tells how the gradient was made.
    """
    found, dtype = _before(gradient, dependence)
    owner = _value_of(variable)
    if gradient is not None and (dtype is not None or _ROUNDED in getattr(owner, "__dict__", {})):
        vars(owner)[_ROUNDED] = dtype
    return _marked(found, dtype)


def as_unrounded(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns terms of gradients, which functions made, with what their variables remember of them."""
    return [
        _marked(gradient, getattr(_value_of(variable), "__dict__", {}).get(_ROUNDED))
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def rounding_of(term: Any) -> tf.DType | None:
    """Returns the dtype to which the sum of a term of a gradient is to be rounded; None if it is not."""
    return getattr(term, _ROUNDED, None)


def rounded(total: Any, dtype: tf.DType | None) -> Any:
    """Returns a sum of terms, rounded on its device as on one device; None as it is."""
    if total is None or dtype is None:
        return total
    with tf.device(total.device):
        return tf.cast(tf.cast(total, dtype), total.dtype)


def _before(gradient: Any, dependence: RowDependence) -> tuple[Any, tf.DType | None]:
    if not isinstance(gradient, tf.Tensor):
        return gradient, None
    widened = dependence.made(gradient)
    if widened is None or widened.type != "Cast":
        return gradient, None
    between = widened.inputs[0]
    narrowed = dependence.made(between)
    if narrowed is None or narrowed.type != "Cast":
        return gradient, None
    before = narrowed.inputs[0]
    is_rounding = (
        before.dtype == gradient.dtype and between.dtype.is_floating and between.dtype.size < before.dtype.size
    )
    same_graph = getattr(before, "graph", None) is getattr(gradient, "graph", None)
    return (before, between.dtype) if is_rounding and same_graph else (gradient, None)


def _marked(gradient: Any, dtype: tf.DType | None) -> Any:
    if dtype is not None and isinstance(gradient, tf.Tensor):
        setattr(gradient, _ROUNDED, dtype)
    return gradient


def _value_of(variable: Any) -> Any:
    """Returns TensorFlow's variable of a Keras variable; any other as it is."""
    value = getattr(variable, "__dict__", {}).get("_value")
    return variable if value is None else value
