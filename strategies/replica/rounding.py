"""Gradients that are rounded to a smaller dtype where they are computed: they are summed first, and rounded afterwards.

A float8 layer computes its bias in bfloat16, so that the gradient of the bias, a sum over rows, is rounded to bfloat16
at the end of the backward pass. One device rounds the sum over the batch. Here this is a sum over replicas and
micro-batches, each of which would round its own term. So a term is taken as it was before rounding, and records the
dtype to which its sum is to be rounded.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import tensorflow as tf

from strategies.batches.row_dependence import RowDependence

_ROUNDED = "_keras_strategies_rounded_to"


def unrounded(gradient: Any, variable: Any, dependence: RowDependence) -> Any:
    """Returns a gradient as it was before rounding; unchanged if it was not rounded, or if this is unknown.

    The variable records the dtype, too, since functions return other tensors than those made in them.

    Args:
        gradient: a tensor, slices or None.
        variable: the variable to which the gradient belongs.
        dependence: knows the ops that made the gradient.
    """
    found, dtype = _before(gradient, dependence)
    owner = _value_of(variable)
    if gradient is not None and (dtype is not None or _ROUNDED in getattr(owner, "__dict__", {})):
        vars(owner)[_ROUNDED] = dtype
    return _marked(found, dtype)


def as_unrounded(gradients: Sequence[Any], variables: Sequence[Any]) -> list[Any]:
    """Returns terms of gradients, which functions made, marked with the dtypes that their variables recorded."""
    return [
        _marked(gradient, getattr(_value_of(variable), "__dict__", {}).get(_ROUNDED))
        for gradient, variable in zip(gradients, variables, strict=True)
    ]


def rounding_of(term: Any) -> tf.DType | None:
    """Returns the dtype to which the sum of a gradient's terms is to be rounded; None if it is not to be rounded."""
    return getattr(term, _ROUNDED, None)


def rounded(total: Any, dtype: tf.DType | None) -> Any:
    """Returns a sum of terms, rounded to `dtype` on its own device; unchanged if either is None."""
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
    """Returns the TensorFlow variable of a Keras variable; any other variable unchanged."""
    value = getattr(variable, "__dict__", {}).get("_value")
    return variable if value is None else value
