"""Quantization of models that are made only for their shapes: the weights that are quantized need no values.

Otherwise each weight would be drawn, only to be rounded, and the rounded values would stay in memory.

Its contract is tested in ``tests/keras_ext/test_planned_model.py``.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import keras
import numpy as np

from strategies._keras_hooks.addresses import keras_quantizers, quantizers_module
from strategies._keras_hooks.wrapping import wrap
from strategies.replica.creation_context import creation_context
from strategies.replica.deferred import UnknownValue, draw_of


def install() -> None:
    """Wraps the function that rounds a weight to integers, in both places where Keras calls it."""
    wrap(quantizers_module, "abs_max_quantize", _quantize)
    wrap(keras_quantizers, "abs_max_quantize", _quantize)


def _quantize(
    original: Callable[..., Any],
    inputs: Any,
    axis: Any,
    value_range: Any = (-127, 127),
    dtype: str = "int8",
    *args: Any,
    **kwargs: Any,
) -> Any:
    is_weight = isinstance(inputs, keras.Variable) and draw_of(inputs) is not None
    # Keras packs integers of smaller ranges before it assigns them.
    if not creation_context().only_shapes or not is_weight or tuple(value_range) != (-127, 127):
        return original(inputs, axis, value_range, dtype, *args, **kwargs)
    axes = {int(each) % len(inputs.shape) for each in np.atleast_1d(axis)}
    scale_shape = [1 if dim in axes else size for dim, size in enumerate(inputs.shape)]
    return UnknownValue(tuple(inputs.shape), dtype), keras.ops.ones(scale_shape, inputs.dtype)
